package attacher

import (
	"cmp"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
	"belay.dev/belay/internal/publication"
)

// watch registers the event handlers.
func (a *Attacher) watch() error {
	_, errA := a.objects.attachmentInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(item any) { a.attachmentChanged(item) },
		UpdateFunc: func(before, item any) {
			a.attachmentAnnotated(before.(*storagev1.VolumeAttachment), item.(*storagev1.VolumeAttachment))
			a.attachmentChanged(item)
		},
		DeleteFunc: a.attachmentDeleted,
	})
	_, errV := a.objects.volumeInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(item any) { a.volumeChanged(item) },
		UpdateFunc: func(before, item any) {
			if before.(*corev1.PersistentVolume).UID != item.(*corev1.PersistentVolume).UID {
				a.volumeDeleted(before)
			}
			a.volumeChanged(item)
		},
		DeleteFunc: a.volumeDeleted,
	})
	_, errN := a.objects.csiNodeInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(item any) { a.csiNodeChanged(item) },
		UpdateFunc: func(_, item any) { a.csiNodeChanged(item) },
		DeleteFunc: func(item any) { a.csiNodeChanged(item) },
	})
	return errors.Join(errA, errV, errN)
}

// last returns the object of an event, also from a DeletedFinalStateUnknown.
func last[T any](item any) (T, bool) {
	if unknown, ok := item.(cache.DeletedFinalStateUnknown); ok {
		item = unknown.Obj
	}
	object, ok := item.(T)
	return object, ok
}

func (a *Attacher) attachmentChanged(item any) {
	defer kube.Signal(a.attachmentHandled)
	va, ok := last[*storagev1.VolumeAttachment](item)
	if !ok || va.Spec.Attacher != a.driver {
		return
	}
	a.objects.attachments.CaughtUp(va.Name)
	a.objects.trackOrphan(va)
	a.enqueue(a.unsettledKeys(va))
}

// attachmentAnnotated asks for a list of the driver's volumes when the machine of an attachment has another boot, and has an attached volume
// published again when a person asks for that.
func (a *Attacher) attachmentAnnotated(before, va *storagev1.VolumeAttachment) {
	if va.Spec.Attacher != a.driver || va.UID != before.UID {
		return
	}
	if boot := before.Annotations[kube.BootIDAnnotation]; boot != "" && boot != va.Annotations[kube.BootIDAnnotation] {
		kube.Signal(a.newBoot)
	}
	if retry := va.Annotations[kube.RetryAnnotation]; retry != "" && retry != before.Annotations[kube.RetryAnnotation] {
		a.publishAgain(va)
	}
}

// publishAgain has an attached volume published again, as if two lists had it nowhere. It does nothing where two lists had it elsewhere, which
// could make a second writer (S1), and where the node has another ID than was recorded.
func (a *Attacher) publishAgain(va *storagev1.VolumeAttachment) {
	from, err := a.objects.sourceOf(va)
	nodeID, nodeErr := a.nodeID(va.Spec.NodeName)
	if err != nil || nodeErr != nil || nodeID != va.Annotations[kube.NodeIDAnnotation] || !va.Status.Attached || va.DeletionTimestamp != nil {
		return
	}
	if a.calls.of(va.UID).drift == publication.NoDrift {
		a.calls.recordDrift(attempt{uid: va.UID, attachment: va, volume: from.identity, node: va.Spec.NodeName}, publication.NotPublished, "", time.Now())
	}
}

func (a *Attacher) attachmentDeleted(item any) {
	defer kube.Signal(a.attachmentHandled)
	va, ok := last[*storagev1.VolumeAttachment](item)
	if !ok {
		return
	}
	if name := va.Spec.Source.PersistentVolumeName; name != nil && a.running.Load() {
		a.volumes.Add(*name) // its finalizer may be removable now
	}
	if va.Spec.Attacher != a.driver {
		return
	}
	a.objects.attachments.CaughtUp(va.Name)
	keys := []publication.Key{a.objects.keyOf(va)} // before the volume of an orphan is forgotten
	if handle := cmp.Or(a.calls.of(va.UID).handle, a.objects.orphans.handle(va.Name)); handle != "" {
		keys = append(keys, possibleKeys(handle, va.Spec.NodeName)...)
	}
	a.objects.orphans.drop(va.Name)
	if inline := va.Spec.Source.InlineVolumeSpec; inline != nil && inline.CSI != nil {
		keys = append(keys, a.keysOfVolume(inline.CSI.VolumeHandle)...) // it may have made the volume exclusive
	}
	a.enqueue(keys)
}

func (a *Attacher) volumeChanged(item any) {
	pv, ok := last[*corev1.PersistentVolume](item)
	if !ok {
		return
	}
	a.objects.volumes.CaughtUp(pv.Name)
	a.enqueue(a.keysOfSource(pv))
	if a.running.Load() && a.mayRelease(pv) {
		a.volumes.Add(pv.Name)
	}
}

func (a *Attacher) volumeDeleted(item any) {
	pv, ok := last[*corev1.PersistentVolume](item)
	if !ok {
		return
	}
	a.objects.volumes.CaughtUp(pv.Name)
	keys := a.keysOfSource(pv)
	if from, err := a.objects.sourceOfVolume(pv); err == nil && !planted.SharedWake {
		for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
			keys = append(keys, possibleKeys(from.handle, va.Spec.NodeName)...) // records under these may belong to other keys now
		}
	}
	a.enqueue(keys)
}

// keysOfSource are the keys of the attachments that refer to a PersistentVolume, and of all of its volume, which it may
// have made exclusive.
func (a *Attacher) keysOfSource(pv *corev1.PersistentVolume) (keys []publication.Key) {
	from, err := a.objects.sourceOfVolume(pv)
	for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
		if va.Spec.Attacher != a.driver {
			continue
		}
		a.objects.trackOrphan(va)
		keys = append(keys, a.unsettledKeys(va)...)
	}
	if err == nil && !planted.SharedWake {
		keys = append(keys, a.keysOfVolume(from.handle)...)
	}
	return keys
}

// possibleKeys are both possible keys of an attachment: the volume, and the volume and node.
func possibleKeys(handle, node string) []publication.Key {
	return []publication.Key{{Volume: handle}, {Volume: handle, Node: node}}
}

// keysOfVolume are the keys of all attachments of a volume.
func (a *Attacher) keysOfVolume(handle string) []publication.Key {
	return a.unsettledKeys(a.attachmentsOf(publication.Key{Volume: handle})...)
}

// unsettledKeys are the keys of attachments that are not settled.
func (a *Attacher) unsettledKeys(all ...*storagev1.VolumeAttachment) (keys []publication.Key) {
	for _, va := range all {
		if !a.isSettled(va) {
			keys = append(keys, a.objects.keyOf(va))
		}
	}
	return keys
}

func (a *Attacher) csiNodeChanged(item any) {
	node, ok := last[*storagev1.CSINode](item)
	if !ok {
		return
	}
	a.enqueue(a.unsettledKeys(a.objects.attachments.byIndex(indexNode, node.Name)...))
}

// isSettled reports whether an attachment needs no decision: it is attached, not being deleted, and its
// PersistentVolume is protected. It cannot unblock other attachments either: those of an exclusive volume keep waiting.
// This saves decisions at the start, at each resync, and when an attach is recorded.
func (a *Attacher) isSettled(va *storagev1.VolumeAttachment) bool {
	switch {
	case !va.Status.Attached, va.DeletionTimestamp != nil:
		return false
	case a.controller.Capabilities().Attach && !slices.Contains(va.Finalizers, a.finalizer):
		return false // it was removed by another client
	case a.calls.of(va.UID).drift != publication.NoDrift:
		return false // ListVolumes contradicts it
	}
	from, err := a.objects.sourceOf(va)
	return err == nil && !from.unprotected(a.finalizer)
}

// enqueue enqueues the keys that an event concerns, each once: if a worker took a key before its second addition, it would decide twice.
// Before Run it does nothing: Run enqueues all of them.
func (a *Attacher) enqueue(keys []publication.Key) {
	if !a.running.Load() {
		return
	}
	added := make(map[publication.Key]bool, len(keys))
	for _, key := range keys {
		if !added[key] {
			added[key] = true
			a.queue.Add(key)
		}
	}
}
