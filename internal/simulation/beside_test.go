package simulation

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
)

// beside makes, in one of four seeds, an attachment of a shared volume beside one that is attached to the same node, under a name of its own, as another
// controller may that names a PersistentVolume with the same handle, and deletes it again. The volume stays at the place that both are for.
func (s *sim) beside() {
	if s.besides == nil || s.besides.IntN(8) > 0 || len(s.missing) > 0 {
		return
	}
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		d, second := s.diskOf(va), fmt.Sprint("by-hand-beside-", va.Spec.NodeName)
		slot := s.slotOf(d)
		if d.exclusive || slot == nil || !va.Status.Attached || va.DeletionTimestamp != nil || va.Name == second {
			continue
		}
		if s.stored(attachments)(second) != nil {
			s.say("another client deletes %s", second)
			_ = s.api.remove(nil, nil, attachments, second, nil)
			return
		}
		made := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: d.key().Driver, NodeName: va.Spec.NodeName}}
		made.Name, s.byHand[second] = second, d
		made.Spec.Source.PersistentVolumeName = &slot.volume
		if _, err := s.api.create(nil, nil, made); err == nil {
			s.say("another client attaches %s to %s too", d.handle, va.Spec.NodeName)
		}
		return
	}
}
