package fencing

import "testing"

// TestOptOutAfterTheCommand: a fence whose command was stored, and refused because the owner opted the node out, sends no other one. It ends
// once the command cannot be carried out any more and the switch says On; if the machine is off, recovery continues.
func TestOptOutAfterTheCommand(t *testing.T) {
	for power, want := range map[Power]Phase{PowerOn: Cancelled, PowerOff: Moved} {
		s := newStand(t)
		s.disobeys = true
		for count[Command](s) == 0 {
			s.turn()
		}
		s.seen.OptedOut, s.power = true, power
		s.until(want)
		if count[Command](s) != 1 {
			t.Errorf("%d commands", count[Command](s))
		}
		if want == Cancelled && count[Taint](s)+count[DeletePod](s) > 0 {
			t.Errorf("something was taken from the node: %T", s.did)
		}
	}
}

// TestUnfenceADeletedNode: before the fence of a deleted Node goes because a client deleted it, its VolumeAttachments record that: no other
// one begins for the boot. Those of a node that is there do not, and neither do those of a fence that ended by itself.
func TestUnfenceADeletedNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stand)
		want   int
	}{
		"deleted by a client": {func(s *stand) {
			s.seen.Exists, s.seen.Now, s.fence.NodeDeleted, s.fence.Deleting = No, Boot{}, true, true
		}, 1},
		"the node is silent": {func(s *stand) { s.fence.Deleting = true }, 0},
		"the node is back":   {func(s *stand) { s.fence.NodeDeleted, s.fence.Deleting = true, true }, 0},
		"not by a client":    {func(s *stand) { s.seen.Exists, s.seen.Now, s.fence.NodeDeleted = No, Boot{}, true }, 0},
		"recorded already": {func(s *stand) {
			s.seen.Exists, s.seen.Now, s.fence.NodeDeleted, s.fence.Deleting, s.seen.Attachments[0].Unfenced = No, Boot{}, true, true, true
		}, 0},
		"deleted in the middle": {func(s *stand) { s.seen.Exists, s.seen.Now, s.fence.Deleting = No, Boot{}, true }, 0},
	} {
		s := newStand(t)
		s.fence.Phase = Cancelled
		c.change(s)
		for count[Finish](s) == 0 {
			if !s.turn() {
				t.Fatalf("%s: the fence stays: %T", name, s.did)
			}
		}
		if got := count[Unfence](s); got != c.want {
			t.Errorf("%s: %d recorded, want %d (%T)", name, got, c.want, s.did)
		}
	}
}
