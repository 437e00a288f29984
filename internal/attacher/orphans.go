package attacher

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// orphans are our attachments of which nothing says which volume they are for: it was not
// recorded on them, and the PersistentVolume that they name is gone or was recreated for
// another volume. One of them may still have its volume published: its name, a digest of
// handle, driver and node, tells whether it is of a given volume.
type orphans struct {
	mu      sync.Mutex
	handles map[string]string // by the attachment's name; empty where it is not known
	// searched are those for which all PersistentVolumes were looked at: from then on, each
	// that comes is compared with them.
	searched map[string]bool
}

func newOrphans() *orphans {
	return &orphans{handles: map[string]string{}, searched: map[string]bool{}}
}

// noteStray takes what is known now of an attachment's volume. Before the cache of PersistentVolumes is filled nothing is
// known of any: Run notes them all once it is. (Each PersistentVolume that comes is compared with each orphan. With all
// attachments for orphans, the start over 20,000 would be 200 million comparisons.)
func (o *objects) noteStray(va *storagev1.VolumeAttachment) {
	name := va.Spec.Source.PersistentVolumeName
	if !o.volumeInformer.HasSynced() || name == nil || va.Spec.Source.InlineVolumeSpec != nil {
		return
	}
	o.orphans.mu.Lock()
	defer o.orphans.mu.Unlock()
	// Looked up under the lock: of two notes side by side the later one stays, and has looked later.
	known := recordedHandle(va) != ""
	if !known {
		from, err := o.sourceOfName(*name)
		known = err == nil && o.fits(va, from.handle)
	}
	_, noted := o.orphans.handles[va.Name]
	switch {
	case known:
		o.orphans.forget(va.Name)
	case !noted:
		o.orphans.handles[va.Name] = ""
	}
}

// learnHandle finds the orphans of a volume. It is asked before each decision about one: an orphan may have it attached.
func (o *objects) learnHandle(handle string) {
	o.orphans.mu.Lock()
	defer o.orphans.mu.Unlock()
	names := map[string]string{} // that the volume's attachments have, by node
	for orphan, known := range o.orphans.handles {
		va, ok := o.attachments.Get(orphan)
		if known != "" || !ok {
			continue
		}
		node := va.Spec.NodeName
		if _, ok := names[node]; !ok {
			names[node] = kube.AttachmentName(handle, o.driver, node)
		}
		if names[node] == orphan {
			o.orphans.handles[orphan] = handle
		}
	}
}

// search looks for a PersistentVolume of an orphan's volume, once. It computes a digest for
// each there is: never do it where events are waited for.
func (o *objects) search(name string) {
	o.orphans.mu.Lock()
	known, orphan := o.orphans.handles[name]
	done := !orphan || known != "" || o.orphans.searched[name]
	if !done {
		o.orphans.searched[name] = true
	}
	o.orphans.mu.Unlock()
	va, ok := o.attachments.Get(name)
	if done || !ok {
		return
	}
	for _, item := range o.volumeInformer.GetStore().List() {
		if from, err := o.sourceOfVolume(item.(*corev1.PersistentVolume)); err == nil && o.fits(va, from.handle) && kube.IsAttachmentName(name) {
			o.learnHandle(from.handle)
			return
		}
	}
}

// drop takes the end of an attachment.
func (s *orphans) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(name)
}

// forget drops an attachment; hold the lock.
func (s *orphans) forget(name string) {
	delete(s.handles, name)
	delete(s.searched, name)
}

// handle is the volume of an orphan; empty if it is not known, or it is none.
func (s *orphans) handle(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[name]
}

// of finds the names of a volume's orphans.
func (s *orphans) of(handle string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, known := range s.handles {
		if known == handle {
			names = append(names, name)
		}
	}
	return names
}
