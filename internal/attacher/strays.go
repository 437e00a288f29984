package attacher

import (
	"sync"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// strays are our attachments whose PersistentVolume is not known. One of them
// may still have its volume published: its name, a digest of handle, driver and
// node, tells whether it is of a given volume.
type strays struct {
	mu    sync.Mutex
	names map[string]struct{}
}

func newStrays() *strays { return &strays{names: map[string]struct{}{}} }

// note takes what is known now of an attachment's PersistentVolume. Before the cache of PersistentVolumes is filled nothing is
// known of any: Run notes them all once it is. (Each PersistentVolume that comes is compared with each stray. With all
// attachments for strays, the start over 20,000 would be 200 million comparisons.)
func (s *strays) note(va *storagev1.VolumeAttachment, o *objects) {
	if !o.volumeInformer.HasSynced() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Looked up under the lock: of two notes side by side the later one stays, and has looked later.
	stray := false
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		_, known := o.volumes.get(*name)
		stray = !known
	}
	if stray {
		s.names[va.Name] = struct{}{}
	} else {
		delete(s.names, va.Name)
	}
}

// drop takes the end of an attachment.
func (s *strays) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}

// of finds the strays of a volume.
func (s *strays) of(handle string, o *objects) []*storagev1.VolumeAttachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*storagev1.VolumeAttachment
	for name := range s.names {
		va, ok := o.attachments.get(name)
		if !ok || kube.AttachmentName(handle, o.driver, va.Spec.NodeName) != name {
			continue
		}
		if _, known := o.volumes.get(*va.Spec.Source.PersistentVolumeName); !known {
			found = append(found, va)
		}
	}
	return found
}
