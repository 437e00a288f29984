package fencing

import (
	"testing"
	"time"
)

// A person deletes the Node of a machine that is being fenced, while the power switch does not answer: the usual recovery. The garbage collector
// then removes its lease, and a kubelet that runs registers its Node only when it starts: from now on nothing that this machine could do
// would be heard. The network heals, the switch answers On, the machine runs well. Silence that is counted on a lease that is not there any
// more is no silence, also for a process that listened before.
// Expected: as ADR 25 says, a machine without a Node is asked and never commanded, whenever the Node was deleted.
func TestHostileNodeDeletedInTheMiddleIsNotSwitchedOff(t *testing.T) {
	s := newStand(t)
	s.power, s.disobeys = PowerUnknown, true
	s.until(Fencing)
	s.seen.Source.Running = true // an agent hangs: no command yet
	s.waits()
	if count[Command](s) > 0 {
		t.Fatal("the test is about a fence without a command")
	}
	s.seen.Exists, s.seen.Now, s.seen.Isolated, s.seen.Renewal, s.seen.ReadAt = No, Boot{}, false, "", s.now
	s.now = s.now.Add(10 * time.Minute)
	s.seen.Source.Running, s.power = false, PowerOn
	d := s.waits()
	if n := count[Command](s); n > 0 {
		t.Errorf("%d commands to switch off a machine that runs and whose Node was deleted; it waits for %s", n, d.Reason)
	}
	// The fencer does not hold it either: no lease then, no lease now.
	r := Requested{
		Fence: s.fence, Answered: func(string) bool { return false }, Sent: func(string) bool { return false },
		Exists: No, ReadAt: s.now, Source: s.seen.Source,
	}
	r.Fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor)}
	if got := Serve(s.now, r); got == ServeOff {
		t.Error("the fencer sends the command")
	}
}

// The same where the command was stored while the Node was there: the fencer reads that the Node is gone, and sends it. The lease is removed
// some seconds after the Node, so its text has not changed yet.
func TestHostileFencerSparesADeletedNode(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	r := Requested{
		Fence: s.fence, Answered: func(string) bool { return false }, Sent: func(string) bool { return false },
		Exists: No, Renewal: "r", ReadAt: s.now, Source: s.seen.Source,
	}
	r.Fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor), Renewal: "r"}
	if got := Serve(s.now, r); got == ServeOff {
		t.Error("a machine whose Node is gone is switched off")
	}
}

// A client deletes the fence (kubectl belay unfence) after a command was stored that did nothing: its switch did not answer, or the fencer did not send
// it. An opt-out or a maintenance sends no other one (TestOptOutAfterTheCommand), the delete of the fence does: every thirty seconds, until the
// machine is off.
// Expected: as for an opt-out.
func TestHostileDeletedFenceSendsNoOtherCommand(t *testing.T) {
	s := newStand(t)
	s.disobeys = true
	for count[Command](s) == 0 {
		s.turn()
	}
	s.fence.Deleting = true
	s.waits()
	s.waits()
	if n := count[Command](s); n != 1 {
		t.Errorf("%d commands, all but the first after the fence was deleted (%s)", n, s.fence.Phase)
	}
}

// The fencer looks at opt-out and maintenance again before it sends. That the record is being deleted stands in the object that it has just
// read.
// Expected: refused.
func TestHostileFencerRefusesForADeletedFence(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	r := Requested{
		Fence: s.fence, Answered: func(string) bool { return false }, Sent: func(string) bool { return false },
		Exists: Yes, Now: boot1, Renewal: "r", ReadAt: s.now, Source: s.seen.Source,
	}
	r.Fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor), Renewal: "r"}
	if got := Serve(s.now, r); got != ServeOff {
		t.Fatalf("before: %v", got)
	}
	r.Fence.Deleting = true
	if got := Serve(s.now, r); got == ServeOff {
		t.Error("the machine is switched off for a fence that a client has deleted")
	}
}

// A node from which volumes were taken one by one renews its lease once and falls silent again, as with a network that flaps. The fence ends as
// Cancelled and lifts the isolation although the Node lists the volume in use, because "a node that falls silent again gets a fence of its
// own, which looks at its mounts too". It does not, if its owner opted it out or is in maintenance, and not while a brake holds.
// Expected: the isolation stays until the volume is unmounted or the boot has ended, as in TestReturnOfAnotherKind without the one renewal.
func TestHostileFlappingNodeKeepsItsIsolation(t *testing.T) {
	for name, c := range map[string]struct {
		fence func(*stand)
		node  func(*Node)
		fleet func(*Fleet)
	}{
		"opted out":            {func(s *stand) { s.seen.OptedOut = true }, func(n *Node) { n.OptedOut = true }, func(*Fleet) {}},
		"maintenance":          {func(s *stand) { s.seen.Maintenance = true }, func(n *Node) { n.Maintenance = true }, func(*Fleet) {}},
		"five commands lately": {func(*stand) {}, func(*Node) {}, func(f *Fleet) { f.Commanded = ago("a", 0, "b", 0, "c", 0, "d", 0, "e", 0) }},
		"two are under way":    {func(*stand) {}, func(*Node) {}, func(f *Fleet) { f.InFlight = 2 }},
		"its kubelet answers":  {func(*stand) {}, func(n *Node) { n.Endpoint = Yes }, func(*Fleet) {}},
	} {
		s := newCut(t)
		s.seen.Source = Source{}
		if p := s.proof(); p.Class() != StorageFenced {
			t.Fatal("no volume was taken")
		}
		// One renewal, and silence again. Its kubelet has unmounted nothing.
		s.seen.Renewed, s.seen.AliveSince, s.seen.Mounted, s.seen.Silent = true, s.now, []Volume{vol1}, true
		c.fence(s)
		s.waits()
		n := Node{Boot: boot1, Heard: true, Silent: time.Minute, Limit: Default.Limit(0), Ready: No, Endpoint: No, ReadAt: s.now}
		c.node(&n)
		fleet := Fleet{Nodes: []Node{n, {Boot: other, Heard: true, Limit: Default.Limit(0)}, {Heard: true, Limit: Default.Limit(0)}}}
		c.fleet(&fleet)
		if next := Suspect(s.now, Default, DefaultBrakes(), fleet.Count(), n); !s.seen.Isolated && !next.Suspected {
			t.Errorf("%s: %s, not isolated with %v mounted, and no other fence begins: %s", name, s.fence.Phase, s.seen.Mounted, next.Reason)
		}
	}
}

// The driver's declaration is withdrawn (an administrator learns that it was wrong), or its CSIDriver is deleted with an upgrade. What was taken
// before that is taken: the node comes back with the mount. Mounted is filled from the drivers that are declared now, so the pure decision cannot
// tell; see TestHostileWithdrawnDeclaration of internal/recovery.

// A live node whose command can no longer be carried out, and whose switch is not bound any more (another FenceSource got its address by mistake):
// the fencer answers nothing, by design. The healthy node stays isolated, and the wait is AwaitingSource, whose exit is that the agent ends. No agent runs.
// Expected: a wait with an exit that can happen, as SourceLocked or NoEvidence, or the end of the fence.
func TestHostileLiveNodeWaitsForASwitchThatIsNotAsked(t *testing.T) {
	for name, change := range map[string]func(*Source){
		"shared":           func(s *Source) { s.Shared = true },
		"locked":           func(s *Source) { s.Locked = true },
		"bound to nothing": func(s *Source) { s.SaidOn = Boot{} },
	} {
		s := newStand(t)
		s.disobeys = true
		for count[Command](s) == 0 {
			s.turn()
		}
		s.seen.Source.Status = Answer{} // the command was lost with its fencer
		s.seen.Renewed, s.seen.Silent, s.seen.Ready, s.seen.AliveSince = true, false, Yes, s.now
		change(&s.seen.Source)
		var d Decision
		for end := s.now.Add(EnduresFor / 2); s.now.Before(end); s.now = s.now.Add(time.Second) { // after EnduresFor no switch matters
			d = Decide(s.now, s.fence, s.seen)
			for _, step := range d.Steps {
				if _, ask := step.(Ask); !ask { // which Serve does not answer
					s.do(step)
				}
			}
		}
		if s.seen.Isolated && d.Reason == AwaitingSource {
			t.Errorf("%s: a node that renews its lease is isolated for %v, and waits for %s: %s", name, EnduresFor/2, d.Reason, Exits[d.Reason].By)
		}
	}
}

// Volumes were taken one by one. A person deletes the Node, the network heals, and a person restarts the kubelet: the same boot registers under a
// new Node object, which has no taint, with the old mounts. Isolate is a step of the phase Isolating alone, so the node is not isolated again:
// pods come at once, and the volume that was taken can come back to the boot whose old mount holds unwritten data. The fence says AwaitingUnmount,
// and keeps nothing. The same after another client removed the taint (hole 14: one that vanished is set again).
// Expected: while unmounted() says no, a node of this boot that is there and not isolated is isolated.
func TestHostileReturnUnderAnotherNodeObject(t *testing.T) {
	for name, change := range map[string]func(*stand){
		"a new Node object":     func(s *stand) { s.seen.Now.NodeUID = "uid-2" },
		"the taint was removed": func(*stand) {},
	} {
		s := newCut(t)
		s.seen.Source = Source{}
		if p := s.proof(); p.Class() != StorageFenced {
			t.Fatal("no volume was taken")
		}
		s.seen.Exists, s.seen.Now, s.seen.Isolated, s.seen.Silent = No, Boot{}, false, false
		s.waits()
		s.seen.Exists, s.seen.Now, s.seen.Ready, s.seen.Renewed, s.seen.AliveSince, s.seen.Mounted = Yes, boot1, Yes, true, s.now, []Volume{vol1}
		change(s)
		if d := s.waits(); !s.seen.Isolated {
			t.Errorf("%s: %s, %s, with %v mounted, and the node takes pods", name, s.fence.Phase, d.Reason, s.seen.Mounted)
		}
	}
}

// TestReleaseWithoutASwitchThatAnswers: the machine is back, Ready, and runs another boot; its switch was changed, or locked, while it was repaired, and
// is not asked any more. The node is released: the taint out-of-service, NoExecute, must not stay on it.
func TestReleaseWithoutASwitchThatAnswers(t *testing.T) {
	for name, change := range map[string]func(*Source){
		"shared": func(s *Source) { s.Shared = true },
		"locked": func(s *Source) { s.Locked = true },
	} {
		s := newStand(t)
		s.until(Moved)
		s.seen.Now, s.seen.Ready, s.seen.Silent, s.seen.Renewed = boot2, Yes, false, true
		change(&s.seen.Source)
		for end := s.now.Add(time.Hour); s.now.Before(end); s.now = s.now.Add(time.Second) {
			for _, step := range Decide(s.now, s.fence, s.seen).Steps {
				if _, ask := step.(Ask); !ask {
					s.do(step)
				}
			}
		}
		if s.fence.Phase != Released || s.seen.Isolated || s.seen.OutOfService {
			t.Errorf("%s: %s, isolated %t, out of service %t", name, s.fence.Phase, s.seen.Isolated, s.seen.OutOfService)
		}
	}
}
