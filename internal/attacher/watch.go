package attacher

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
	"belay.dev/belay/internal/publication"
)

// watch registers the event handlers.
func (a *Attacher) watch() error {
	_, errA := a.objects.attachmentInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(item any) { a.attachmentChanged(nil, item) },
		UpdateFunc: func(before, item any) {
			a.attachmentAnnotated(before.(*storagev1.VolumeAttachment), item.(*storagev1.VolumeAttachment))
			a.attachmentChanged(before.(*storagev1.VolumeAttachment), item)
		},
		DeleteFunc: a.attachmentDeleted,
	})
	_, errV := a.objects.volumeInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(item any) { a.volumeChanged(nil, item) },
		UpdateFunc: a.volumeChanged,
		DeleteFunc: a.volumeDeleted,
	})
	_, errN := a.objects.csiNodeInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(item any) { a.csiNodeChanged(nil, item) },
		UpdateFunc: func(before, item any) { a.csiNodeChanged(before, item) },
		DeleteFunc: func(item any) { a.csiNodeChanged(item, item) },
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

func (a *Attacher) attachmentChanged(before *storagev1.VolumeAttachment, item any) {
	defer kube.Signal(a.attachmentHandled)
	va, ok := last[*storagev1.VolumeAttachment](item)
	if !ok || va.Spec.Attacher != a.driver {
		return
	}
	a.objects.attachments.CaughtUp(va.Name)
	a.objects.trackOrphan(va)
	keys := a.unsettledKeys(va)
	if before != nil && a.running.Load() && moved(before, va) {
		keys = append(keys, a.keysMoved(before, va)...)
	}
	if inline := inlineHandle(va, a.driver); inline != nil && before == nil {
		keys = append(keys, a.keysOfMode(*inline)...)
	}
	a.enqueue(keys)
}

// moved reports whether what other attachments of its places depend on has changed: what is recorded, whether it ends, or whether the finalizer protects it.
func moved(before, va *storagev1.VolumeAttachment) bool {
	ends := func(va *storagev1.VolumeAttachment) bool { return va.DeletionTimestamp != nil }
	return before.UID != va.UID || ends(before) != ends(va) || before.Status.Attached && !va.Status.Attached ||
		len(before.Finalizers) != len(va.Finalizers) || !slices.Equal(recordedPlaces(before), recordedPlaces(va)) ||
		before.Annotations[kube.DeclaredGoneAnnotation] != va.Annotations[kube.DeclaredGoneAnnotation]
}

// keysMoved are the keys that an attachment had before and has now, and those beside it.
func (a *Attacher) keysMoved(before, va *storagev1.VolumeAttachment) []publication.Key {
	keys := []publication.Key{a.objects.keyOf(va)}
	if key := keys[0]; key.Shared() {
		keys = append(keys, a.keysBeside(key.Volume, va, recordedPlaces(before)...)...)
	}
	return keys
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
	if a.driftOf(va, a.calls.of(va.UID).drift) == publication.NoDrift {
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
	a.calls.gone(va.UID, time.Now())
	keys := []publication.Key{a.objects.keyOf(va)} // before the volume of an orphan is forgotten
	if r := a.calls.of(va.UID); r.handle != "" {
		keys = append(keys, a.objects.keyOfRecord(r))
	}
	if handle := cmp.Or(keys[0].Volume, a.objects.orphans.handle(va.Name)); handle != "" {
		keys = append(keys, a.objects.keyAt(handle, va))
		if keys[0].Shared() {
			keys = append(keys, a.keysBeside(handle, va)...)
		}
	}
	a.objects.orphans.drop(va.Name)
	if inline := inlineHandle(va, a.driver); inline != nil {
		keys = append(keys, a.keysOfMode(*inline)...)
	}
	a.enqueue(keys)
}

// keysOfMode are the keys of all attachments of a volume if an event has made it exclusive or shared.
func (a *Attacher) keysOfMode(handle string) []publication.Key {
	if !a.objects.shared.changed(handle, a.objects.exclusive(handle)) || planted.SharedWake {
		return nil
	}
	return a.keysOfVolume(handle)
}

func (a *Attacher) volumeChanged(before, item any) {
	pv, ok := last[*corev1.PersistentVolume](item)
	if !ok {
		return
	}
	a.objects.volumes.CaughtUp(pv.Name)
	keys := a.keysNamed(pv)
	if was, ok := before.(*corev1.PersistentVolume); !ok || !isSame(was, pv) {
		keys = append(keys, a.keysOfSource(pv)...)
		if ok {
			keys = append(keys, a.keysOfSource(was)...)
		}
	}
	a.enqueue(keys)
	if a.running.Load() && a.mayRelease(pv) {
		a.volumes.Add(pv.Name)
	}
}

// isSame reports whether two versions of a PersistentVolume are one for attachments that do not name it.
func isSame(was, pv *corev1.PersistentVolume) bool {
	return was.UID == pv.UID && equality.Semantic.DeepEqual(was.Spec, pv.Spec) && maps.Equal(was.Annotations, pv.Annotations) &&
		(was.DeletionTimestamp == nil) == (pv.DeletionTimestamp == nil)
}

func (a *Attacher) volumeDeleted(item any) {
	pv, ok := last[*corev1.PersistentVolume](item)
	if !ok {
		return
	}
	a.objects.volumes.CaughtUp(pv.Name)
	a.enqueue(append(a.keysNamed(pv), a.keysOfSource(pv)...))
}

// keysNamed are the keys of the attachments that refer to a PersistentVolume.
func (a *Attacher) keysNamed(pv *corev1.PersistentVolume) (keys []publication.Key) {
	for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
		if va.Spec.Attacher == a.driver {
			a.objects.trackOrphan(va)
			keys = append(keys, a.unsettledKeys(va)...)
		}
	}
	return keys
}

// keysOfSource are the keys of all attachments of the volume of a PersistentVolume, which may have made it exclusive or shared.
func (a *Attacher) keysOfSource(pv *corev1.PersistentVolume) []publication.Key {
	from, err := a.objects.sourceOfVolume(pv)
	if err != nil || planted.SharedWake {
		return nil
	}
	keys := a.keysOfVolume(from.handle)
	if a.objects.shared.changed(from.handle, a.objects.exclusive(from.handle)) {
		keys = append(keys, a.keysOfRecords(from.handle)...)
	}
	return keys
}

// keysOfVolume are the keys of all attachments of a volume.
func (a *Attacher) keysOfVolume(handle string) []publication.Key {
	return a.unsettledKeys(a.attachmentsOf(publication.Key{Volume: handle})...)
}

// keysOfRecords are the keys of what was called for a volume.
func (a *Attacher) keysOfRecords(handle string) (keys []publication.Key) {
	for _, r := range a.calls.ofKey(publication.Key{Volume: handle}) {
		keys = append(keys, a.objects.keyOfRecord(r))
	}
	return keys
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

func (a *Attacher) csiNodeChanged(before, item any) {
	node, ok := last[*storagev1.CSINode](item)
	if !ok {
		return
	}
	all := a.objects.attachments.byIndex(indexNode, node.Name)
	keys := a.unsettledKeys(all...)
	if !a.running.Load() {
		a.enqueue(keys)
		return
	}
	var ids []string
	was, changed := last[*storagev1.CSINode](before)
	if changed {
		ids, _ = indexNodes(was)
	}
	if id := a.objects.nodeID(node.Name); id != "" && !slices.Contains(ids, id) {
		keys = append(keys, a.unsettledKeys(a.objects.attachments.byIndex(indexRecorded, id)...)...) // of nodes with other names, too
	}
	if changed {
		for _, va := range all {
			if key := a.objects.keyOf(va); key.Shared() && !slices.Equal(ids, []string{a.objects.nodeID(node.Name)}) {
				keys = append(keys, a.keysBeside(key.Volume, va, ids...)...)
			}
		}
	}
	a.enqueue(keys)
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
