package simulation

import (
	"fmt"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// formMark begins what tells the forms of a node ID apart.
const formMark = "@"

// inForm is a node ID as the driver calls it now.
func (d *driver) inForm(id string) string {
	if d.form == 0 {
		return id
	}
	return fmt.Sprint(id, formMark, d.form)
}

// withoutForm is what the storage calls the machine, in whatever form.
func withoutForm(id string) (plain, form string) {
	plain, form, _ = strings.Cut(id, formMark)
	return plain, form
}

// recordedID is the recorded node ID of an attachment as the storage calls it.
func recordedID(va *storagev1.VolumeAttachment) string {
	plain, _ := withoutForm(va.Annotations[kube.NodeIDAnnotation])
	return plain
}

// unknown: the driver knows the node by another ID now. It still knows the machines whose names others have.
func (s *sim) unknown(c *call) bool {
	if c.nodeID == restoredID {
		s.breaks("S2", "%s sent for a machine of another cluster", c)
		return true
	}
	return c.by.driver.hangs == not && c.called != c.by.driver.inForm(c.nodeID) && !s.byID(c.nodeID, c.volume).replaced
}

// upgrade has a driver give its nodes IDs of another form.
func (s *sim) upgrade() {
	for _, d := range s.drivers {
		if d.upgrades && s.forms.IntN(12) == 0 {
			s.storage.mu.Lock()
			d.form++
			s.storage.mu.Unlock()
			s.say("%s is upgraded: its node IDs have another form", d.name)
			s.registerDrivers()
		}
	}
	if s.forms.IntN(3) > 0 {
		s.recordSameMachines()
	}
}

func (s *sim) registerDrivers() {
	for _, name := range machineNames {
		if m := s.machines[name]; s.stored(nodes)(name) != nil && m.on && m.online {
			s.registerDriver(m)
		}
	}
}

// recordSameMachines records on attachments by which ID the driver knows their machine now, where it no longer knows the recorded one.
func (s *sim) recordSameMachines() {
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		csiNode, ok := get[*storagev1.CSINode](s.api, va.Spec.NodeName)
		if !ok || recordedID(va) == "" {
			continue
		}
		for _, d := range csiNode.Spec.Drivers {
			plain, _ := withoutForm(d.NodeID)
			same := d.Name == va.Spec.Attacher && plain == recordedID(va) && d.NodeID != va.Annotations[kube.NodeIDAnnotation]
			if same && va.Annotations[kube.SameMachineAnnotation] != d.NodeID {
				s.say("%s: %s is of the same machine as %s", short(va.Name), d.NodeID, va.Annotations[kube.NodeIDAnnotation])
				change(s.api, va, func(va *storagev1.VolumeAttachment) { va.Annotations[kube.SameMachineAnnotation] = d.NodeID })
			}
		}
	}
}
