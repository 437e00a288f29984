package simulation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/testing/excuse"
)

// restoreEtcd restores a backup of etcd to a moment before an exclusive volume was attached to a machine: its attachment is gone, and so
// are its pods, and the Node neither reports nor lists it. The machine and the storage continue; the machine is cut off, or its unmounts hang.
// All processes begin again, and the pod moves on. Only for drivers that list the truth: without a list nothing shows where the volume is.
func (s *sim) restoreEtcd() {
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		d, m := s.diskOf(va), s.machines[va.Spec.NodeName]
		slot, other := s.slotOf(d), s.machines[machineNames[(slices.Index(machineNames, m.name)+1)%len(machineNames)]]
		node, ok := get[*corev1.Node](s.api, m.name)
		if ok && slot != nil && s.restorable(va, d, m) && other.on && other.online {
			s.say("etcd is restored to before %s was attached to %s", d.handle, m)
			of := s.driverOf(d)
			s.kill(of.attacher)
			s.restored[d] = m
			m.online = s.others.IntN(2) == 0
			m.hung = m.online
			s.api.drop(va)
			for _, pod := range s.podsAt(m, d.handle) {
				s.api.drop(pod)
			}
			change(s.api, node, func(n *corev1.Node) {
				name := corev1.UniqueVolumeName(unique(d.handle))
				n.Status.VolumesInUse = slices.DeleteFunc(n.Status.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return v == name })
				n.Status.VolumesAttached = slices.DeleteFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == name })
			})
			s.watchLifecycle()
			s.startAttacher(of)
			s.changeLeader()
			s.comePodTo(other, slot.claim)
			for end := time.Now().Add(restoredFor); time.Now().Before(end) && s.broken == ""; {
				for s.calmTurn() && s.broken == "" {
					continue
				}
				s.sleep(tick)
				s.settleDown()
			}
			m.online, m.hung = true, false
			return
		}
	}
}

// restoredFor is how long the machine is cut off, or its unmounts hang: a few lists of volumes.
const restoredFor = 4 * time.Minute

// restorable reports whether a machine uses an exclusive volume of a driver whose list shows that, and nothing else is at work on it.
func (s *sim) restorable(va *storagev1.VolumeAttachment, d *disk, m *machine) bool {
	of := s.driverOf(d)
	return d.exclusive && of != nil && of.honesty.truthful() && s.answers(d) && va.Status.Attached && va.DeletionTimestamp == nil &&
		s.storage.published[d.handle][s.nodeID(m, d.handle)] && m.on && m.online && m.of(d.handle).mounted && s.counts(m, d.handle) &&
		len(s.attachmentsOf(d)) == 1 && !s.busyWith(d.handle)
}

// attachmentsOf are the attachments of a volume.
func (s *sim) attachmentsOf(d *disk) []*storagev1.VolumeAttachment {
	return slices.DeleteFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool { return s.diskOf(va) != d })
}

// refuses: the storage refuses to publish an exclusive volume that it has at the node that a restored backup knows nothing of.
func (s *sim) refuses(c *call) bool {
	d := s.disk(c.volume)
	m := s.restored[d]
	if m == nil {
		return false
	}
	id := s.nodeID(m, d.handle)
	if !s.storage.published[d.handle][id] {
		delete(s.restored, d)
		return false
	}
	return c.publish && c.nodeID != id && s.excuse(excuse.RestoredBackup)
}

// judgeUnpublish: S2, of a machine that a restored backup knows nothing of, and of one that has the volume mounted by another attachment of the place.
func (s *sim) judgeUnpublish(c *call) {
	for _, va := range s.attachmentsOf(s.disk(c.volume)) {
		m := s.machines[va.Spec.NodeName]
		stays := va.Status.Attached && va.DeletionTimestamp == nil && hasFinalizer(va) && recordedID(va) == c.nodeID
		if stays && c.nodeID == s.nodeID(m, c.volume) && m.of(c.volume).mounted && s.counts(m, c.volume) {
			s.breaks("S2", "%s sent while %s has it mounted by %s", c, m, short(va.Name))
		}
	}
	m := s.restored[s.disk(c.volume)]
	if m != nil && c.nodeID == s.nodeID(m, c.volume) && m.of(c.volume).mounted && s.counts(m, c.volume) && len(s.protecting(s.disk(c.volume), c.nodeID)) == 0 {
		s.breaks("S2", "%s sent while %s has it mounted, for no attachment", c, m)
	}
}
