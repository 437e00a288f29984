package fencing

import "testing"

// TestEndWithoutReturnAfterTheCommand: a fence that waits with AwaitingReturn says that a statement ends it, and moves nothing. That must be so
// after a command was stored, too: with a power switch that is known and silent, one always was. Off is another thing: then belay may have
// switched the machine off, and moves what it has stopped (TestOptOutAfterTheCommand).
func TestEndWithoutReturnAfterTheCommand(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stand)
		phase  Phase
		takes  int
	}{
		"a statement":         {func(s *stand) { s.fence.Statement = s.stated(boot1.Machine) }, Cancelled, 0},
		"the switch says Off": {func(s *stand) { s.power = PowerOff }, Moved, 2},
	} {
		s := newCut(t)
		s.proof()
		if !s.fence.offSent() {
			t.Fatal("no command was stored")
		}
		s.seen.OptedOut, s.fence.Deleting = true, true
		if d := s.waits(); d.Reason != AwaitingReturn {
			t.Fatalf("%s: %s, %s", name, s.fence.Phase, d.Reason)
		}
		c.change(s)
		s.waits()
		if n := count[Taint](s) + count[DeletePod](s) + count[DeleteAttachment](s); s.fence.Phase != c.phase || n != c.takes {
			t.Errorf("%s: phase %s, %d steps that take something; the advice says that it moves nothing", name, s.fence.Phase, n)
		}
	}
}

// TestDeletedFenceSendsNoOtherCommand: a client that deletes the NodeFence does not want the machine switched off later.
func TestDeletedFenceSendsNoOtherCommand(t *testing.T) {
	s := newCut(t)
	s.proof()
	s.fence.Deleting = true
	before := count[Command](s)
	s.now = s.now.Add(2 * IntentFor)
	s.waits()
	if n := count[Command](s) - before; n > 0 {
		t.Errorf("%d more commands to switch off after the NodeFence was deleted", n)
	}
}
