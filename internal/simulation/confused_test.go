package simulation

import (
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// attacherForgets: the attacher looks up the volume of an attachment by the name of its
// PersistentVolume each time, and takes the disk that has that name now for the one that it
// published. Until it records what it published, a model stands in for that: on the disks whose
// PersistentVolume was made anew, only calls for an attachment of the very disk have an effect,
// and an attachment that goes takes its publication with it.
const attacherForgets = true

// mistaken tells of a call whether an attachment of another disk stands for it, and none of its
// own.
func (s *sim) mistaken(c *call) bool {
	d := s.disk(c.volume)
	of := func(own bool) bool {
		return slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool {
			return (s.diskOf(va) == d) == own && va.Annotations[kube.NodeIDAnnotation] == c.nodeID && (c.publish || va.DeletionTimestamp != nil)
		})
	}
	return d.confused && !of(true) && of(false)
}
