package fencing

import (
	"testing"
	"time"
)

// successor is a stand in a phase, in a process that has just become the leader: it remembers nothing of what another one asked and proved.
func successor(t *testing.T, p Phase, evidence Class) *stand {
	t.Helper()
	s := newStand(t)
	s.fence.Phase, s.fence.Evidence = p, evidence
	s.seen.Isolated, s.seen.OutOfService, s.seen.TaintSeen = true, true, s.now
	s.seen.ReadAt, s.seen.Listed = s.now, true
	return s
}

// taken reports what a decision takes away from the machine.
func taken(d Decision) (n int) {
	for _, step := range d.Steps {
		switch step.(type) {
		case DeletePod, DeleteAttachment:
			n++
		}
	}
	return n
}

// A pod that is bound to the name of the node is run by the machine that has the name now: its kubelet lists them all. Once another machine
// has registered, a delete without grace ends a pod object whose containers run on a healthy machine, and a StatefulSet starts it a second
// time. Expected: the fence continues with the VolumeAttachments of the boot that ended, and deletes no pod.
func TestHostilePodsOfAnotherMachineAreNotDeleted(t *testing.T) {
	s := successor(t, Evicting, PoweredOff)
	s.seen.Ended, s.seen.Now, s.seen.Ready = true, other, Yes
	s.seen.OutOfService, s.seen.Isolated, s.seen.TaintSeen = false, false, time.Time{}
	for range 3 {
		d := Decide(s.now, s.fence, s.seen)
		if taken(d) > 0 {
			t.Fatalf("deletes from a healthy machine that has taken over the name: %#v", d.Steps)
		}
		s.turn()
		if s.fence.Phase != Evicting {
			return
		}
	}
	t.Fatalf("the fence stays in %s", s.fence.Phase)
}

// A statement expires. In Tainting that is checked, from Evicting on it is not: a new leader, or one that works on a restored etcd, takes
// everything on a word that stopped to count long ago, and nothing else (hole 4, class E "expires").
func TestHostileExpiredStatementAuthorizesNothingAfterALeaderChange(t *testing.T) {
	for _, phase := range []Phase{Evicting, Detaching} {
		for _, exists := range []Knowledge{Yes, No} {
			s := successor(t, phase, Stated)
			s.seen.Source = Source{}
			s.fence.Statement = &Statement{By: "alice", Reason: "pulled both plugs", Machine: boot1.Machine, Made: s.now.Add(-48 * time.Hour), Expires: s.now.Add(-24 * time.Hour), Guarded: true}
			if exists == No {
				s.seen.Exists, s.seen.Now, s.seen.OutOfService, s.seen.Isolated = No, Boot{}, false, false
			}
			d := Decide(s.now, s.fence, s.seen)
			if taken(d) > 0 || d.Proof.Class() != "" {
				t.Errorf("%s, Node exists %v: proof %q and %#v by a statement that expired a day ago", phase, exists, d.Proof.Class(), d.Steps)
			}
		}
	}
}

// The same after the person took the statement back.
func TestHostileWithdrawnStatementAuthorizesNothingAfterALeaderChange(t *testing.T) {
	s := successor(t, Detaching, Stated)
	s.seen.Source = Source{}
	if d := Decide(s.now, s.fence, s.seen); d.Proof.Class() != "" {
		t.Errorf("proof %q without a statement", d.Proof.Class())
	}
}

// "A switch that says On is believed": it has to be asked. For a Node that is gone, a new leader in Evicting or Detaching asks nothing.
func TestHostileStatementAboutADeletedNodeAsksTheSwitchFirst(t *testing.T) {
	s := successor(t, Detaching, Stated)
	s.fence.Statement = &Statement{By: "alice", Reason: "pulled both plugs", Machine: boot1.Machine, Made: s.now, Expires: s.now.Add(time.Hour), Guarded: true}
	s.seen.Exists, s.seen.Now, s.seen.OutOfService, s.seen.Isolated = No, Boot{}, false, false
	s.power = PowerOn
	for range 5 {
		if d := Decide(s.now, s.fence, s.seen); taken(d) > 0 {
			t.Fatalf("VolumeAttachments are deleted while the bound switch says On; asked %d times", count[Ask](s))
		}
		s.turn()
	}
}

// A machine is never switched off because its Node was deleted: without a lease, one that runs well cannot show that it does
// (docs/recovery/nodes-and-people.md, ADR 25). A Node that is deleted in the middle of a fence makes a new leader, which has listened to nothing, command at
// once, because Exists No counts as silent. Expected: who did not hear the silence itself does not command.
func TestHostileNodeDeletedWhileFencingIsNotSwitchedOff(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	s.seen.Exists, s.seen.Now, s.seen.Isolated, s.seen.Silent = No, Boot{}, false, false
	s.waits()
	if n := count[Command](s); n > 0 {
		t.Errorf("%d commands to switch off a machine whose Node was deleted", n)
	}
}

// deaf makes the switch give no answer any more.
func (s *stand) deaf() { s.power = PowerUnknown; s.seen.Source.Status = s.answer() }

func (s *stand) state() {
	s.fence.Statement = &Statement{By: "alice", Reason: "looked at it", Machine: boot1.Machine, Made: s.now, Expires: s.now.Add(time.Hour), Guarded: true}
}

// The switch said Off, and then its BMC died, as when a UPS runs empty. The fence is in Tainting with the evidence PoweredOff. A person's
// statement must be heard there: nothing else can end the wait.
func TestHostileStatementIsHeardInTainting(t *testing.T) {
	s := newStand(t)
	s.until(Tainting)
	s.deaf()
	s.waits()
	s.state()
	if d := s.waits(); s.fence.Phase == Tainting {
		t.Errorf("the statement is not heard: %s, %s", s.fence.Phase, d.Reason)
	}
}

// The same from Evicting on, after a change of leader: there is no return to Fencing from there, so without an exit the volumes are held forever.
func TestHostileStatementIsHeardFromEvictingOn(t *testing.T) {
	for _, phase := range []Phase{Evicting, Detaching} {
		s := successor(t, phase, PoweredOff)
		s.deaf()
		s.now = s.now.Add(time.Second)
		s.state()
		if d := s.waits(); s.fence.Phase == phase {
			t.Errorf("the statement is not heard: %s, %s", s.fence.Phase, d.Reason)
		}
	}
}

// kubectl belay unfence: "As long as no command was sent and no pod was deleted, that cancels the fence." In Tainting it does not, although
// Fencing could be entered again. A person who stated a wrong thing and takes it back by the delete loses the volumes all the same. The
// same for an owner who opts the node out.
func TestHostileDeletedFenceIsCancelledInTainting(t *testing.T) {
	for _, name := range []string{"deleted", "opted out"} {
		s := newStand(t)
		s.power = PowerOff // as it was found: nothing is commanded
		s.until(Tainting)
		if name == "deleted" {
			s.fence.Deleting = true
		} else {
			s.seen.OptedOut = true
		}
		s.waits()
		if s.fence.Phase != Cancelled || s.seen.OutOfService {
			t.Errorf("%s: the fence is %s, %d pods deleted, tainted %v", name, s.fence.Phase, count[DeletePod](s), s.seen.OutOfService)
		}
	}
}

// A machine that broke was replaced by another one under the same Node object, with the fence's taints on it. The switch of the broken
// machine says Off, rightly and forever: a late Off could not hit the new one anyway. The taint must not stay on a healthy node.
func TestHostileAnotherMachineIsReleasedWhileTheFirstIsOff(t *testing.T) {
	s := newStand(t)
	s.until(Moved)
	s.seen.Now, s.seen.Ready, s.seen.Silent = other, Yes, false
	s.now = s.now.Add(time.Hour)
	s.waits()
	s.waits()
	if s.seen.OutOfService || s.seen.Isolated {
		d := s.waits()
		t.Errorf("%s, %s: out-of-service %v, isolated %v", s.fence.Phase, d.Reason, s.seen.OutOfService, s.seen.Isolated)
	}
}

// A command was stored, the node lives, and its switch gives no answer any more (or is locked after three logins). The node stays isolated
// forever, and the exit that the wait names, a statement, is not heard for a node that lives. A person who deletes the fence must be able
// to end that, once the command cannot be carried out any more.
func TestHostileDeletedFenceOfALiveNodeEndsWithoutItsSwitch(t *testing.T) {
	s := newStand(t)
	s.disobeys = true
	s.until(Fencing)
	for count[Command](s) == 0 {
		s.turn()
	}
	s.deaf()
	s.seen.Silent, s.seen.Renewed, s.seen.Ready, s.seen.AliveSince = false, true, Yes, s.now
	s.fence.Deleting = true
	if d := Decide(s.now, s.fence, s.seen); d.Reason != IntentOpen || len(d.Steps) > 0 {
		t.Errorf("while the command may still be carried out: %s, %#v", d.Reason, d.Steps)
	}
	s.now = s.now.Add(time.Hour)
	if d := s.waits(); s.fence.Phase != Cancelled {
		t.Errorf("%s, %s, an hour after the command ended", s.fence.Phase, d.Reason)
	}
}

// The same in Releasing: the machine runs another boot, and its switch is silent.
func TestHostileDeletedFenceOfARestartedNodeEndsWithoutItsSwitch(t *testing.T) {
	s := newStand(t)
	s.until(Moved)
	s.deaf()
	s.seen.Now, s.seen.Ready, s.seen.Silent, s.seen.Renewed = boot2, Yes, false, true
	s.now = s.now.Add(time.Hour)
	s.fence.Deleting = true
	s.waits()
	if d := s.waits(); s.fence.Phase != Released {
		t.Errorf("%s, %s, an hour after the command ended", s.fence.Phase, d.Reason)
	}
}

// A Node that was created a moment ago, by a person, an autoscaler or a kubelet that has not reported yet, has another UID and names no
// machine. "Always: the same Node UID and boot": it must not get the out-of-service taint of an earlier one.
func TestHostileNodeOfAnotherUIDIsNotTainted(t *testing.T) {
	s := newStand(t)
	s.until(Tainting)
	s.seen.Now, s.seen.OutOfService = Boot{Node: "node-1", NodeUID: "uid-9"}, false
	s.waits()
	if n := count[Taint](s); n > 0 {
		t.Errorf("a Node with another UID that names no machine was tainted")
	}
}

// "One that vanished means a new bracket" (hole 14): medik8s' FAR removes the out-of-service taint without looking at its value. In Detaching
// nothing sets it again, because the boot is known to have ended: beside kube-controller-manager nothing detaches then, and the fence waits
// for the VolumeAttachments forever.
func TestHostileTaintThatVanishedInDetachingIsSetAgain(t *testing.T) {
	s := newStand(t)
	s.until(Detaching)
	s.seen.OutOfService, s.seen.TaintSeen = false, time.Time{}
	if d := s.waits(); s.fence.Phase == Detaching {
		t.Errorf("%s, %s: %d taints", s.fence.Phase, d.Reason, count[Taint](s))
	}
}
