package fencing

import (
	"testing"
	"time"
)

// These rules could be taken out of Decide without a test that failed.

// A new leader has listened to nothing: it does not switch off a node that it has not heard to be silent itself (hole 16).
func TestNewLeaderListensBeforeOff(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	s.seen.Silent = false
	if d := s.waits(); count[Command](s) != 0 || d.Reason != SilenceTooShort {
		t.Errorf("%d commands to a node that is not silent, %s", count[Command](s), d.Reason)
	}
}

// A switch that locked the account is neither asked nor commanded (hole 19).
func TestLockedSwitchIsNotUsed(t *testing.T) {
	s := newStand(t)
	s.seen.Source.Locked = true
	if d := s.waits(); d.Reason != SourceLocked || count[Command](s)+count[Ask](s) != 0 {
		t.Errorf("%s after %T", d.Reason, s.did)
	}
}

// The boot that was proven to have ended renews its lease while the node is being released: its taints stay.
func TestContradictedInReleasing(t *testing.T) {
	s := newStand(t)
	s.until(Moved)
	s.fence.Phase, s.seen.Renewed, s.seen.Silent = Releasing, true, false
	s.now = s.now.Add(time.Hour)
	s.power = PowerOn
	if d := s.waits(); d.Reason != Contradicted || !s.seen.OutOfService {
		t.Errorf("%s, out-of-service %v", d.Reason, s.seen.OutOfService)
	}
}

// The contradiction holds from the first renewal on: nothing is taken, and nothing is proven. It is decided again when it is to be reported.
func TestContradictedIsDecidedAgain(t *testing.T) {
	s := newStand(t)
	s.until(Moved)
	s.seen.Renewed, s.seen.Silent, s.seen.AliveSince = true, false, s.now
	want := s.now.Add(ContradictedAfter)
	s.now = s.now.Add(time.Second)
	if d := Decide(s.now, s.fence, s.seen); d.Reason != Contradicted || len(d.Steps) > 0 || d.Proof.Class() != "" || !d.RecheckAt.Equal(want) {
		t.Errorf("%s, %#v, %q, again at %v", d.Reason, d.Steps, d.Proof.Class(), d.RecheckAt)
	}
}

// A fence whose create was carried out after a later fence, or another one of its number, had begun and ended does nothing (hole 13). None is begun that would be cancelled.
func TestOutdatedFence(t *testing.T) {
	for _, phase := range []Phase{Suspected, Isolating, Fencing} {
		s := newStand(t)
		s.until(phase)
		for later, want := range map[int64]bool{0: false, s.fence.Epoch: true, s.fence.Epoch + 1: true} {
			s.seen.Epoch = later // also if there is no Node
			d := Decide(s.now, s.fence, s.seen)
			cancels := len(d.Steps) == 1 && d.Steps[0] == Step(Enter{Phase: Cancelled, Evidence: s.fence.Evidence})
			if cancels != want {
				t.Errorf("%s of epoch %d, the latest has %d: %#v", phase, s.fence.Epoch, later, d.Steps)
			}
			if Needless(s.fence, s.seen) != want {
				t.Errorf("%s of epoch %d, the latest has %d: needless %t", phase, s.fence.Epoch, later, !want)
			}
		}
	}
}

// A machine that has restarted is released once its node is Ready, not before. One whose release is Manual waits for a person, who deletes
// the fence.
func TestMovedWaitsForReadyAndThePerson(t *testing.T) {
	s := newStand(t)
	s.until(Moved)
	s.fence.ManualRelease, s.seen.Now, s.seen.Ready = true, boot2, No
	if d := s.waits(); d.Reason != AwaitingBoot {
		t.Fatalf("not Ready: %s, %s", s.fence.Phase, d.Reason)
	}
	s.seen.Ready = Yes
	if d := s.waits(); d.Reason != AwaitingRelease {
		t.Fatalf("Ready: %s, %s", s.fence.Phase, d.Reason)
	}
	s.fence.Deleting = true
	if s.waits(); s.fence.Phase == Moved {
		t.Fatal("the person deleted the fence, and it stays")
	}
}

// The out-of-service taint is set on a reading of the Node that is not older than a second.
func TestLiveReadBeforeTaint(t *testing.T) {
	s := newStand(t)
	s.until(Tainting)
	s.seen.Source.Status, s.seen.ReadAt = Answer{Power: PowerOff, Asked: s.now, Machine: boot1.Machine}, s.now.Add(-2*LiveFor)
	d := Decide(s.now, s.fence, s.seen)
	if _, ok := d.Steps[0].(ReadNode); !ok {
		t.Errorf("%T on a reading that is two seconds old", d.Steps[0])
	}
}

// The VolumeAttachments of a machine without a Node are deleted once the API server has accepted the delete of each pod, and not before. A
// pod that a finalizer keeps does not run: it keeps no volume of another pod from moving, and is what the fence waits for if it is what is left.
func TestPodWithFinalizer(t *testing.T) {
	s := newStand(t)
	s.until(Evicting)
	s.seen.Exists, s.seen.Now, s.seen.OutOfService = No, Boot{}, false
	stuck := Pod{Namespace: "default", Name: "stuck", UID: "pod-2"}
	s.seen.Listed, s.seen.Pods, s.seen.Ended = true, []Pod{stuck, {Namespace: "default", Name: "db-0", UID: "pod-1", Leaving: true}}, true
	if d := Decide(s.now, s.fence, s.seen); d.Reason != AwaitingPods || len(d.Steps) != 1 || d.Steps[0] != Step(DeletePod{Pod: stuck}) {
		t.Errorf("before the delete was accepted: %s, %#v", d.Reason, d.Steps)
	}
	stuck.Leaving = true
	s.seen.Pods = []Pod{stuck}
	s.until(Detaching)
	s.seen.Listed, s.seen.Attachments = true, []Attachment{{Name: "csi-1", UID: "va-1"}, {Name: "csi-2", UID: "va-2", Deleting: true}}
	d := Decide(s.now, s.fence, s.seen)
	if d.Reason != AwaitingPods || len(d.Steps) != 1 || d.Steps[0] != Step(DeleteAttachment{Attachment: s.seen.Attachments[0]}) {
		t.Errorf("while a finalizer keeps a pod: %s, %#v", d.Reason, d.Steps)
	}
	s.until(Moved)
}

// What a pod claims to be keeps none that uses a volume from being deleted and waited for: its owner wrote that. The next pod of a DaemonSet is
// neither deleted nor waited for (hole 20).
func TestPodsThatLeave(t *testing.T) {
	for name, c := range map[string]struct {
		pod  Pod
		want bool
	}{
		"without a volume":                       {Pod{}, true},
		"with a volume":                          {Pod{Volume: true}, true},
		"of a DaemonSet":                         {Pod{Returns: true}, false},
		"of a DaemonSet, with a volume":          {Pod{Returns: true, Volume: true}, true},
		"bound later":                            {Pod{Late: true}, false},
		"bound later, with a volume":             {Pod{Late: true, Volume: true}, false},
		"the next of a DaemonSet, with a volume": {Pod{Late: true, Returns: true, Volume: true}, false},
	} {
		s := newStand(t)
		s.until(Evicting)
		s.seen.Listed, s.seen.Pods, s.seen.Ended = true, []Pod{c.pod}, true
		d := Decide(s.now, s.fence, s.seen)
		if deletes := len(d.Steps) == 1 && d.Steps[0] == Step(DeletePod{Pod: c.pod}); deletes != c.want {
			t.Errorf("%s: %#v", name, d.Steps)
		}
		s.fence.Phase, c.pod.Leaving = Detaching, true
		s.seen.Pods = []Pod{c.pod}
		if d := Decide(s.now, s.fence, s.seen); (d.Reason == AwaitingPods) != c.want {
			t.Errorf("%s: the fence waits for %s", name, d.Reason)
		}
		s.seen.Pods[0].Leaving = false // this process has never listed the pods before
		if d := Decide(s.now, s.fence, s.seen); d.Reason != AwaitingDetach {
			t.Errorf("%s, and never deleted: the fence waits for %s", name, d.Reason)
		}
	}
}

// A fence is in flight until nothing but others is left to wait for (hole 17).
func TestInFlight(t *testing.T) {
	for phase, want := range map[Phase]bool{
		Suspected: true, Isolating: true, Fencing: true, Tainting: true, Evicting: true,
		Detaching: false, Moved: false, Releasing: false, Released: false, Cancelled: false,
	} {
		if got := (Fence{Phase: phase}).InFlight(); got != want {
			t.Errorf("%s: %t", phase, got)
		}
		if (Fence{Phase: phase, NodeDeleted: true}).InFlight() {
			t.Errorf("%s, of a deleted Node: true", phase)
		}
	}
}

// Without a power switch that may be asked, a fence commands nothing, however long it waits for a person: once it is known to wait, it holds back no other.
// One that has commanded counts, whatever became of the switch.
func TestMayTake(t *testing.T) {
	own := Source{Name: "node-1", SaidOn: boot1, Machine: boot1.Machine}
	locked, shared := own, own
	locked.Locked, shared.Shared = true, true
	sent := Intent{Nonce: "1", NotAfter: start}
	for name, c := range map[string]struct {
		fence  Fence
		source Source
		want   bool
	}{
		"its own switch":                  {Fence{Boot: boot1, Phase: Fencing}, own, true},
		"no switch, as far as was looked": {Fence{Boot: boot1, Phase: Isolating}, Source{}, true},
		"no switch":                       {Fence{Boot: boot1, Phase: Fencing, Waits: true}, Source{}, false},
		"one of another boot":             {Fence{Boot: boot2, Phase: Fencing, Waits: true}, own, false},
		"locked":                          {Fence{Boot: boot1, Phase: Fencing, Waits: true}, locked, false},
		"shared":                          {Fence{Boot: boot1, Phase: Fencing, Waits: true}, shared, false},
		"locked, and commanded":           {Fence{Boot: boot1, Phase: Fencing, Waits: true, Intent: sent}, locked, true},
		"its volumes are detached":        {Fence{Boot: boot1, Phase: Detaching, Intent: sent}, own, false},
		"the Node of it is deleted":       {Fence{Boot: boot1, Phase: Fencing, NodeDeleted: true}, own, false},
	} {
		if got := c.fence.MayTake(c.source); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestActive (hole 17): a fence that has commanded in vain for the window holds back no other, and one that is proven, or has not commanded, does as before.
func TestActive(t *testing.T) {
	const window = 10 * time.Minute
	own, sent := Source{Name: "node-1", SaidOn: boot1, Machine: boot1.Machine}, Intent{Nonce: "1", NotAfter: start}
	for name, c := range map[string]struct {
		fence Fence
		since time.Duration // its first command; zero for none
		want  bool
	}{
		"not commanded":                       {Fence{Boot: boot1, Phase: Fencing}, 0, true},
		"commanded a moment ago":              {Fence{Boot: boot1, Phase: Fencing, Intent: sent}, time.Second, true},
		"commanded for nearly the window":     {Fence{Boot: boot1, Phase: Fencing, Intent: sent}, window - 1, true},
		"commanded for the window":            {Fence{Boot: boot1, Phase: Fencing, Intent: sent}, window, false},
		"the second answer Off does not come": {Fence{Boot: boot1, Phase: Tainting, Intent: sent}, window, false},
		"proven, and its pods are deleted":    {Fence{Boot: boot1, Phase: Evicting, Intent: sent}, window, true},
		"its volumes are detached":            {Fence{Boot: boot1, Phase: Detaching, Intent: sent}, window, false},
	} {
		commanded := time.Time{}
		if c.since > 0 {
			commanded = start.Add(-c.since)
		}
		if got := c.fence.Active(start, own, commanded, window); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
