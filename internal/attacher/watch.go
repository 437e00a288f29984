package attacher

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/planted"
	"belay.dev/belay/internal/publication"
)

// watch wires the caches' events to the queues.
func (a *Attacher) watch() error {
	_, errA := a.objects.attachmentInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(item any) { a.attachmentChanged(item) },
		UpdateFunc: func(_, item any) { a.attachmentChanged(item) },
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

// last unpacks an event's object, also if it is the last known state of one
// whose deletion was missed.
func last[T any](item any) (T, bool) {
	if unknown, ok := item.(cache.DeletedFinalStateUnknown); ok {
		item = unknown.Obj
	}
	object, ok := item.(T)
	return object, ok
}

func (a *Attacher) attachmentChanged(item any) {
	va, ok := last[*storagev1.VolumeAttachment](item)
	if !ok || va.Spec.Attacher != a.driver {
		return
	}
	a.objects.attachments.CaughtUp(va.Name)
	a.objects.noteStray(va)
	a.wakeUnsettled(va)
}

func (a *Attacher) attachmentDeleted(item any) {
	va, ok := last[*storagev1.VolumeAttachment](item)
	if !ok {
		return
	}
	if name := va.Spec.Source.PersistentVolumeName; name != nil && a.running.Load() {
		a.volumes.Add(*name) // its finalizer may come off now
	}
	if va.Spec.Attacher != a.driver {
		return
	}
	a.objects.attachments.CaughtUp(va.Name)
	a.wakeAttachment(va) // before it is forgotten which volume an orphan is for
	if handle := cmp.Or(a.calls.of(va.UID).handle, a.objects.orphans.handle(va.Name)); handle != "" {
		a.wakeKeys(handle, va.Spec.NodeName)
	}
	a.objects.orphans.drop(va.Name)
	if inline := va.Spec.Source.InlineVolumeSpec; inline != nil && inline.CSI != nil {
		a.wakeHandle(inline.CSI.VolumeHandle) // it may have made the volume exclusive
	}
}

func (a *Attacher) volumeChanged(item any) {
	pv, ok := last[*corev1.PersistentVolume](item)
	if !ok {
		return
	}
	a.objects.volumes.CaughtUp(pv.Name)
	a.wakeVolume(pv)
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
	a.wakeVolume(pv)
	if from, err := a.objects.sourceOfVolume(pv); err == nil && !planted.SharedWake {
		for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
			a.wakeKeys(from.handle, va.Spec.NodeName) // what was noted under them may be another key's by now
		}
	}
}

// wakeVolume wakes every attachment that a PersistentVolume concerns: those that name it,
// and all of its volume, which it may have made exclusive.
func (a *Attacher) wakeVolume(pv *corev1.PersistentVolume) {
	from, err := a.objects.sourceOfVolume(pv)
	for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
		if va.Spec.Attacher != a.driver {
			continue
		}
		a.objects.noteStray(va)
		a.wakeUnsettled(va)
	}
	if err == nil && !planted.SharedWake {
		a.wakeHandle(from.handle)
	}
}

// wakeKeys queues the keys that an attachment of the volume to the node is decided under: its own and that of all nodes.
func (a *Attacher) wakeKeys(handle, node string) {
	if a.running.Load() {
		a.queue.Add(publication.Key{Volume: handle})
		a.queue.Add(publication.Key{Volume: handle, Node: node})
	}
}

// wakeHandle wakes all attachments of a volume.
func (a *Attacher) wakeHandle(handle string) {
	for _, va := range a.attachmentsOf(publication.Key{Volume: handle}) {
		a.wakeUnsettled(va)
	}
}

// wakeUnsettled wakes an attachment if anything is to be done for it.
func (a *Attacher) wakeUnsettled(va *storagev1.VolumeAttachment) {
	if !a.isSettled(va) {
		a.wakeAttachment(va)
	}
}

func (a *Attacher) csiNodeChanged(item any) {
	node, ok := last[*storagev1.CSINode](item)
	if !ok {
		return
	}
	for _, va := range a.objects.attachments.byIndex(indexNode, node.Name) {
		a.wakeUnsettled(va)
	}
}

// isSettled tells whether nothing is to be done for an attachment, whatever else there is: it is attached and shall be, and
// its PersistentVolume is protected. Nor does anything become possible for another one by that: of an exclusive volume the
// others go on waiting. So at the start, at each resync, and when an attach is recorded, nothing is decided anew.
func (a *Attacher) isSettled(va *storagev1.VolumeAttachment) bool {
	switch {
	case !va.Status.Attached, va.DeletionTimestamp != nil:
		return false
	case a.controller.Capabilities().Attach && !slices.Contains(va.Finalizers, a.finalizer):
		return false // somebody took it off
	case a.calls.of(va.UID).drift != publication.NoDrift:
		return false // the driver's list says that it is not attached
	}
	from, err := a.objects.sourceOf(va)
	return err == nil && !from.unprotected(a.finalizer)
}

// wakeAttachment queues the key of an attachment. Before Run there is nobody to
// work it off: Run queues all of them.
func (a *Attacher) wakeAttachment(va *storagev1.VolumeAttachment) {
	if a.running.Load() {
		a.queue.Add(a.objects.keyOf(va))
	}
}
