package attacher

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// orphans are our attachments with an unknown volume: the handle was not recorded, and the PersistentVolume is gone or
// was recreated for another volume. The volume of an orphan may still be published. The name of the attachment, a
// digest of handle, driver and node, shows whether it belongs to a given volume.
type orphans struct {
	mu      sync.Mutex
	handles map[string]string // by attachment name; empty if unknown
	// searched holds the orphans that were compared with all known volumes. From then on, only new ones are compared.
	searched map[string]bool
}

func newOrphans() *orphans {
	return &orphans{handles: map[string]string{}, searched: map[string]bool{}}
}

// trackOrphan adds an attachment to the orphans, or removes it when its volume is known. It does nothing before the
// PersistentVolumes are cached; Run calls it again then. Otherwise every attachment would be an orphan at the start,
// and comparing 20,000 of them with each PersistentVolume would take 200 million steps.
func (o *objects) trackOrphan(va *storagev1.VolumeAttachment) {
	name := va.Spec.Source.PersistentVolumeName
	if !o.volumeInformer.HasSynced() || name == nil || va.Spec.Source.InlineVolumeSpec != nil {
		return
	}
	o.orphans.mu.Lock()
	defer o.orphans.mu.Unlock()
	// The lookup must be done under the lock: of two concurrent calls, the last one has the newest state.
	known := recordedHandle(va) != ""
	if !known {
		from, err := o.sourceOfName(*name)
		known = err == nil && o.mayBelongTo(va, from.handle)
	}
	_, noted := o.orphans.handles[va.Name]
	switch {
	case known:
		o.orphans.forget(va.Name)
	case !noted:
		o.orphans.handles[va.Name] = ""
	}
}

// matchOrphans finds the orphans of a volume. It must run before each decision on the volume, which an orphan may have
// attached.
func (o *objects) matchOrphans(handle string) {
	o.orphans.mu.Lock()
	defer o.orphans.mu.Unlock()
	names := map[string]string{} // attachment names of the volume, by node
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

// searchVolumeOf compares an orphan with all volumes that are known, once: those of the PersistentVolumes, and those
// recorded on other attachments, which may be settled and are then not decided on. It computes a digest for each of
// them: do not call it from an event handler. One whose PersistentVolume is not known yet waits for that, for as long as
// is returned, unless it is being deleted: mostly the two were just created, and their events come in any order. A volume
// that it blocks finds it before (matchOrphans).
func (o *objects) searchVolumeOf(name string) (wait time.Duration) {
	va, ok := o.attachments.Get(name)
	if !ok || !kube.IsAttachmentName(name) {
		return 0
	}
	if _, known := o.volumes.Get(kube.SourceName(va)); !known && va.DeletionTimestamp == nil {
		if wait = min(time.Until(va.CreationTimestamp.Add(volumeExpected)), volumeExpected); wait > 0 {
			return wait
		}
	}
	o.orphans.mu.Lock()
	known, orphan := o.orphans.handles[name]
	done := !orphan || known != "" || o.orphans.searched[name]
	if !done {
		o.orphans.searched[name] = true
	}
	o.orphans.mu.Unlock()
	if done {
		return 0
	}
	for _, handle := range o.knownHandles() {
		if o.mayBelongTo(va, handle) {
			o.matchOrphans(handle)
			break
		}
	}
	return 0
}

// knownHandles are the handles of all volumes of the driver that are known.
func (o *objects) knownHandles() (handles []string) {
	for _, other := range o.attachments.Cached() {
		if handle := recordedHandle(other); handle != "" && other.Spec.Attacher == o.driver {
			handles = append(handles, handle)
		}
	}
	for _, item := range o.volumeInformer.GetStore().List() {
		if from, err := o.sourceOfVolume(item.(*corev1.PersistentVolume)); err == nil {
			handles = append(handles, from.handle)
		}
	}
	return handles
}

// volumeExpected is how long the event of a PersistentVolume may come after that of its first VolumeAttachment.
const volumeExpected = 10 * time.Second

// drop removes an attachment that is gone.
func (s *orphans) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(name)
}

// forget is drop with the lock held.
func (s *orphans) forget(name string) {
	delete(s.handles, name)
	delete(s.searched, name)
}

// handle returns the handle of an orphan, or "" if it is unknown or the attachment is not an orphan.
func (s *orphans) handle(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[name]
}

// of returns the names of a volume's orphans.
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
