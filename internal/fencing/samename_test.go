package fencing

import (
	"testing"
	"time"
)

// TestTwoFencesTakeNoTurns (hole 3): of a Node that does not name its machine, two fences may each think that it is their own. The later one isolates it.
func TestTwoFencesTakeNoTurns(t *testing.T) {
	unnamed := Boot{Node: "node-1", NodeUID: "uid-5"}
	for name, c := range map[string]struct {
		shown    Boot
		later    bool
		isolates bool
	}{
		"a later fence has isolated it":     {unnamed, true, false},
		"an earlier fence has, or none":     {unnamed, false, true},
		"it is the machine of the fence":    {boot1, true, true},
		"it is the other machine's by name": {other, false, false},
	} {
		s := newStand(t)
		s.until(Fencing)
		s.seen.Now, s.seen.Isolated, s.seen.IsolatedLater, s.did = c.shown, false, c.later, nil
		s.waits()
		if got := count[Isolate](s) > 0; got != c.isolates {
			t.Errorf("%s: isolates %t", name, got)
		}
	}
}

// TestMachineThatTakesANodeOver: the isolation of a machine is not that of another one that takes its Node over, which may have pods while the first one's fence waits.
// Where volumes were taken one by one, the first one might come back with them mounted.
func TestMachineThatTakesANodeOver(t *testing.T) {
	for _, taken := range []bool{false, true} {
		s := newStand(t)
		s.until(Fencing)
		s.turn()
		s.seen.Now, s.seen.Source.Name, s.fence.StorageProven = other, "", taken
		if s.waits(); s.fence.Phase != Fencing || s.seen.Isolated != taken {
			t.Errorf("volumes were taken: %t: %s, isolated %t", taken, s.fence.Phase, s.seen.Isolated)
		}
		s.seen.Now = boot1
		if s.waits(); !s.seen.Isolated {
			t.Error("the machine is back, and not isolated")
		}
	}
}

// TestDoubledFence (hole 13): of two fences of one machine, the one that came second ends before it has done anything.
func TestDoubledFence(t *testing.T) {
	s := newStand(t)
	s.seen.Doubled = true
	s.until(Cancelled)
	if len(s.did) != 1 {
		t.Errorf("%T", s.did)
	}
}

// TestLaterMachineKeepsItsPods (S8): the Node is gone, and another machine of the name has a later fence. The pods of the name are that machine's, about which
// the evidence of the earlier one says nothing.
func TestLaterMachineKeepsItsPods(t *testing.T) {
	for later, deleted := range map[bool]int{true: 0, false: 1} {
		s := newStand(t)
		s.fence.NodeDeleted, s.power = true, PowerOff
		s.seen.Exists, s.seen.Now, s.seen.Later = No, Boot{}, later
		s.until(Released)
		if count[DeletePod](s) != deleted || count[DeleteAttachment](s) != 1 {
			t.Errorf("later: %t: %T", later, s.did)
		}
	}
}

// TestEarlierMachineKeepsItsVolumes (S8): kube-controller-manager takes all volumes of a node that is out of service. While VolumeAttachments of an earlier machine
// of the name are left, the later one is neither commanded nor tainted, and its fence does not count among those that may be.
func TestEarlierMachineKeepsItsVolumes(t *testing.T) {
	said := &Statement{By: "jo", Reason: "pulled the plug", Machine: boot1.Machine, Made: start, Expires: start.Add(time.Hour), Guarded: true}
	for name, change := range map[string]func(*stand){
		"On": func(*stand) {}, "Off": func(s *stand) { s.power = PowerOff }, "a statement": func(s *stand) { s.seen.Source, s.fence.Statement = Source{}, said },
	} {
		s := newStand(t)
		s.seen.Earlier = true
		change(s)
		if d := s.waits(); d.Reason != EarlierMachine || count[Command](s)+count[Taint](s) != 0 || !s.seen.Isolated {
			t.Errorf("%s: %s after %T", name, d.Reason, s.did)
		}
		s.seen.Earlier = false
		s.until(Moved)
	}
	s := newStand(t)
	s.until(Tainting)
	s.seen.Earlier = true
	if d := s.waits(); d.Reason != EarlierMachine || count[Taint](s) != 0 {
		t.Errorf("it comes to light late: %s after %T", d.Reason, s.did)
	}
	f := Fence{Phase: Fencing, Boot: boot1, BesideEarlier: true}
	if source := (Source{Name: "ipmi", SaidOn: boot1, Machine: boot1.Machine}); f.MayTake(source) {
		t.Error("it counts among the fences in flight")
	}
}

// TestSilentAgainInRelease: a machine that started again and fell silent before its switch said On, or whose switch does not answer any more, is released: its new
// boot may need a fence of its own.
func TestSilentAgainInRelease(t *testing.T) {
	for _, says := range []Power{PowerOff, PowerUnknown} {
		for _, silent := range []bool{false, true} {
			s := newStand(t)
			s.until(Moved)
			s.seen.Now, s.seen.Ready, s.seen.Renewed, s.seen.Silent, s.power = boot2, Yes, true, silent, says
			s.until(Releasing)
			if silent {
				s.seen.Ready = No
			}
			s.now = s.fence.Intent.NotAfter.Add(time.Second)
			s.waits()
			s.waits()
			if released := s.fence.Phase == Released; released != silent {
				t.Errorf("says %v, silent %t: %s", says, silent, s.fence.Phase)
			}
		}
	}
}
