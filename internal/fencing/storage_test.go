package fencing

import (
	"testing"
	"time"

	"belay.dev/belay/internal/decision"
)

var vol1, vol2 = Volume{"disk.example.com", "vol-1"}, Volume{"disk.example.com", "vol-2"}

// newCut is a node with a volume of a driver that cuts at unpublish, and a power switch that does not answer.
func newCut(t *testing.T) *stand {
	t.Helper()
	s := newStand(t)
	s.disobeys, s.power, s.seen.Cut = true, PowerUnknown, []Volume{vol1}
	return s
}

// proof takes turns for a minute, and returns the proof at its end. Whatever happens, class B neither taints nor deletes a pod or a
// VolumeAttachment (hole 10).
func (s *stand) proof() Proof {
	s.t.Helper()
	s.waits()
	s.seen.ReadAt = s.now
	p := Decide(s.now, s.fence, s.seen).Proof
	if count[Taint](s)+count[DeletePod](s)+count[DeleteAttachment](s) > 0 || s.fence.Phase != Fencing && s.fence.Phase != Cancelled {
		s.t.Errorf("%s, steps %T", s.fence.Phase, s.did)
	}
	return p
}

// TestStorageFenced (holes 10 and 11): where no switch and no person says anything, a driver that cuts at unpublish proves its own volumes of
// this boot, and nothing else comes of it.
func TestStorageFenced(t *testing.T) {
	for name, change := range map[string]func(*Source){
		"the switch does not answer": func(*Source) {},
		"there is no switch":         func(x *Source) { *x = Source{} },
		"the switch is locked":       func(x *Source) { x.Locked = true },
		"the switch is another's":    func(x *Source) { x.Shared = true },
	} {
		s := newCut(t)
		change(&s.seen.Source)
		p := s.proof()
		if p.Class() != StorageFenced || !p.At(s.now).Holds(boot1, vol1) {
			t.Errorf("%s: proof %+v", name, p)
		}
		unknown := boot1
		unknown.Machine = ""
		for b, v := range map[Boot]Volume{boot1: vol2, boot2: vol1, other: vol1, unknown: vol1} {
			if p.Holds(b, v) {
				t.Errorf("%s: the proof holds for %v of %v", name, v, b)
			}
		}
		if p.Holds(boot1, Volume{}) || p.At(s.now.Add(proofFor)).Holds(boot1, vol1) {
			t.Errorf("%s: the proof holds for a volume without a name, or for ever", name)
		}
		if s.seen.Ended || count[ProveVolumes](s) != 1 {
			t.Errorf("%s: ended %t, steps %T", name, s.seen.Ended, s.did)
		}
	}
}

// TestStorageFencedIsStoredFirst: that volumes may be taken is stored before a proof is given out.
func TestStorageFencedIsStoredFirst(t *testing.T) {
	s := newCut(t)
	s.until(Fencing)
	for !s.fence.StorageProven {
		if p := Decide(s.now, s.fence, s.seen).Proof; p.Class() != "" {
			t.Fatalf("a proof before that: %+v", p)
		}
		if !s.turn() {
			s.now = s.now.Add(time.Second)
		}
	}
	s.seen.ReadAt = s.now
	if p := Decide(s.now, s.fence, s.seen).Proof; p.Class() != StorageFenced {
		t.Errorf("after that: %+v", p)
	}
}

// TestStorageFencedNeedsTheRest (hole 11): a declaration alone proves nothing.
func TestStorageFencedNeedsTheRest(t *testing.T) {
	for name, change := range map[string]func(*stand){
		"no volume of such a driver":      func(s *stand) { s.seen.Cut = nil },
		"not silent for this process":     func(s *stand) { s.seen.Silent = false },
		"the switch says On":              func(s *stand) { s.power = PowerOn },
		"the switch was not asked yet":    func(s *stand) { s.seen.Source.Status, s.seen.Source.Running = Answer{}, true },
		"the Node is gone":                func(s *stand) { s.seen.Exists, s.seen.Now = No, Boot{} },
		"another machine has the name":    func(s *stand) { s.seen.Now = other },
		"a sign of life":                  func(s *stand) { s.seen.Renewed, s.seen.AliveSince = true, s.now },
		"the machine was restarted":       func(s *stand) { s.seen.Now, s.seen.Renewed = boot2, true },
		"the owner opts out":              func(s *stand) { s.seen.OptedOut = true },
		"the owner declares maintenance":  func(s *stand) { s.seen.Maintenance = true },
		"the fence is deleted":            func(s *stand) { s.fence.Deleting = true },
		"the isolation was taken off":     func(s *stand) { s.seen.Isolated = false },
		"the Node was not read just now":  func(s *stand) { s.seen.ReadAt = s.now.Add(-LiveFor - time.Millisecond) },
		"what is stored does not say so":  func(s *stand) { s.fence.StorageProven = false },
		"the fence is not in this phase":  func(s *stand) { s.fence.Phase = Isolating },
		"the boot is not known in full":   func(s *stand) { s.fence.Boot.ID = "" },
		"the Node shows no boot":          func(s *stand) { s.seen.Now.ID = "" },
		"the API server does not answer":  func(s *stand) { s.seen.Exists = Unknown },
		"the switch has answered Off now": func(s *stand) { s.seen.Source.Status = Answer{Power: PowerOff, Asked: s.now, Machine: boot1.Machine} },
	} {
		s := newCut(t)
		s.seen.Source.Running = false
		if p := s.proof(); p.Class() != StorageFenced {
			t.Fatalf("before: %+v", p)
		}
		s.seen.ReadAt, s.seen.Source.Status = s.now, s.answer()
		change(s)
		if s.power == PowerOn {
			s.seen.Source.Status = s.answer()
		}
		if d := Decide(s.now, s.fence, s.seen); d.Proof.Class() != "" && d.Proof.Holds(boot1, vol1) {
			t.Errorf("%s: %+v", name, d.Proof)
		}
	}
}

// TestStrongerEvidence: once the switch says Off, the fence continues as without such a driver.
func TestStrongerEvidence(t *testing.T) {
	s := newCut(t)
	s.proof()
	s.power = PowerOff
	s.until(Moved)
	if count[Taint](s) != 1 || count[DeletePod](s) != 1 {
		t.Errorf("steps %T", s.did)
	}
}

// TestReturnAfterStorageFenced: a node that lives again gets pods only once it has unmounted what may have been taken from it, for as long
// as it is the same boot.
func TestReturnAfterStorageFenced(t *testing.T) {
	for name, commanded := range map[string]bool{"without a switch": false, "with a switch that was commanded": true} {
		s := newCut(t)
		if !commanded {
			s.seen.Source = Source{}
		}
		s.proof()
		if s.fence.offSent() != commanded {
			t.Fatalf("%s: the command is %+v", name, s.fence.Intent)
		}
		back := s.now
		s.power, s.seen.Renewed, s.seen.Silent, s.seen.Ready, s.seen.AliveSince, s.seen.Mounted = PowerOn, true, false, Yes, back, []Volume{vol1}
		if d := s.waits(); d.Reason != AwaitingUnmount || !s.seen.Isolated || d.Proof.Class() != "" {
			t.Errorf("%s: mounted: %s, isolated %t, proof %+v", name, d.Reason, s.seen.Isolated, d.Proof)
		}
		s.seen.Mounted = nil
		s.until(Cancelled)
		s.turn()
		if s.now.Sub(back) < SettleFor || s.seen.Isolated {
			t.Errorf("%s: %v after the sign of life, isolated: %t", name, s.now.Sub(back), s.seen.Isolated)
		}
		// One that unmounts within the minute stays isolated for its rest: what was taken a moment ago may not show yet.
		s = newCut(t)
		s.proof()
		s.seen.Renewed, s.seen.Silent, s.seen.AliveSince, s.power = true, false, s.now, PowerOn
		for end := s.now.Add(SettleFor - time.Second); s.now.Before(end); s.now = s.now.Add(500 * time.Millisecond) {
			if s.turn(); !s.seen.Isolated {
				t.Fatalf("%s: pods were admitted at once", name)
			}
		}
	}
}

// TestReturnOfAnotherKind: a restart ends the old mounts; a node that falls silent again stays isolated, and the fence continues as before; an owner cannot lift the isolation of a node that has not come back.
func TestReturnOfAnotherKind(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*stand)
		phase  Phase
		reason decision.Reason
	}{
		"restarted":    {func(s *stand) { s.seen.Now, s.seen.Ready, s.seen.Silent = boot2, Yes, false }, Cancelled, Settled},
		"silent again": {func(s *stand) { s.seen.Silent = true }, Fencing, NoEvidence},
		"opted out": {func(s *stand) {
			s.seen.Renewed, s.seen.AliveSince, s.seen.Mounted, s.seen.OptedOut = false, time.Time{}, nil, true
		}, Fencing, AwaitingReturn},
		"the fence deleted": {func(s *stand) { s.seen.Renewed, s.fence.Deleting = false, true }, Fencing, AwaitingReturn},
	} {
		s := newCut(t)
		s.seen.Source = Source{}
		s.proof()
		s.seen.Renewed, s.seen.AliveSince, s.seen.Mounted = true, s.now, []Volume{vol1}
		test.change(s)
		if d := s.waits(); s.fence.Phase != test.phase || d.Reason != test.reason || s.seen.Isolated != (test.phase == Fencing) {
			t.Errorf("%s: %s, %s, isolated %t", name, s.fence.Phase, d.Reason, s.seen.Isolated)
		}
	}
	// The next fence, from which nothing was taken.
	s := newStand(t)
	s.seen.Renewed, s.seen.AliveSince, s.seen.Silent, s.seen.Mounted = true, s.now, false, []Volume{vol1}
	if d := s.waits(); s.fence.Phase != Fencing || !s.seen.Isolated || d.Reason != AwaitingUnmount {
		t.Errorf("the next fence: %s, %s, isolated %t", s.fence.Phase, d.Reason, s.seen.Isolated)
	}
}

// TestEndWithoutReturn: a fence from which volumes may have been taken, and that a person ends, does not wait forever for a machine that never
// comes back: evidence that the machine is off ends it, and nothing else does. Nothing is taken by that.
func TestEndWithoutReturn(t *testing.T) {
	ends := map[string]func(*stand){
		"the fence deleted": func(s *stand) { s.fence.Deleting = true },
		"opted out":         func(s *stand) { s.seen.OptedOut = true },
		"maintenance":       func(s *stand) { s.seen.Maintenance = true },
	}
	for end, ended := range ends {
		for name, tc := range map[string]struct {
			change func(*stand)
			phase  Phase
		}{
			"nothing more":                 {func(*stand) {}, Fencing},
			"the switch says On":           {func(s *stand) { s.power = PowerOn }, Fencing},
			"the switch says Off":          {func(s *stand) { s.power = PowerOff }, Cancelled},
			"the switch is another's":      {func(s *stand) { s.power, s.seen.Source.Shared = PowerOff, true }, Fencing},
			"a statement":                  {func(s *stand) { s.fence.Statement = s.stated(boot1.Machine) }, Cancelled},
			"a statement about another":    {func(s *stand) { s.fence.Statement = s.stated(other.Machine) }, Fencing},
			"a statement, the switch On":   {func(s *stand) { s.fence.Statement, s.power = s.stated(boot1.Machine), PowerOn }, Fencing},
			"a statement, not silent yet":  {func(s *stand) { s.fence.Statement, s.seen.Silent = s.stated(boot1.Machine), false }, Fencing},
			"the Node gone":                {func(s *stand) { s.seen.Exists, s.seen.Now, s.seen.Isolated = No, Boot{}, false }, Fencing},
			"the Node gone, a statement":   {func(s *stand) { s.seen.Exists, s.seen.Now, s.fence.Statement = No, Boot{}, s.stated(boot1.Machine) }, Cancelled},
			"another machine":              {func(s *stand) { s.seen.Now = other }, Fencing},
			"another machine, a statement": {func(s *stand) { s.seen.Now, s.fence.Statement = other, s.stated(boot1.Machine) }, Cancelled},
		} {
			s := newCut(t)
			s.seen.Source.Locked = true // so that no command was sent
			s.proof()
			s.seen.Source.Locked = false
			ended(s)
			tc.change(s)
			d := s.waits()
			if s.fence.Phase != tc.phase || tc.phase == Fencing && d.Reason != AwaitingReturn || s.fence.offSent() {
				t.Errorf("%s, %s: %s, %s, command sent: %t", end, name, s.fence.Phase, d.Reason, s.fence.offSent())
			}
			if n := count[Taint](s) + count[DeletePod](s) + count[DeleteAttachment](s); n > 0 || d.Proof.Class() != "" {
				t.Errorf("%s, %s: %d steps that take something, proof %+v", end, name, n, d.Proof)
			}
			if tc.phase == Cancelled && s.seen.Isolated {
				t.Errorf("%s, %s: still isolated", end, name)
			}
		}
	}
}

// stated is a statement about a machine that is in force.
func (s *stand) stated(machine string) *Statement {
	return &Statement{By: "jo", Reason: "looked", Machine: machine, Made: s.now, Expires: s.now.Add(time.Hour), Guarded: true}
}

// TestSilentAgain: for a node that fell silent again, evidence counts as before, and a statement only if it was written after that.
func TestSilentAgain(t *testing.T) {
	for name, c := range map[string]struct {
		made  func(*stand) time.Time
		phase Phase
	}{
		"a statement from before": {func(s *stand) time.Time { return s.fence.SilentAgain.Add(-time.Second) }, Fencing},
		"a statement after that":  {func(s *stand) time.Time { return s.fence.SilentAgain.Add(time.Second) }, Moved},
	} {
		s := newCut(t)
		s.seen.Source = Source{}
		s.proof()
		s.seen.Renewed, s.seen.AliveSince, s.seen.Mounted = true, s.now, []Volume{vol1}
		if s.waits(); count[SilentAgain](s) != 1 || s.seen.Renewed {
			t.Fatalf("%s: %T", name, s.did)
		}
		s.fence.Statement = s.stated(boot1.Machine)
		s.fence.Statement.Made = c.made(s)
		if s.waits(); s.fence.Phase != c.phase {
			t.Errorf("%s: %s", name, s.fence.Phase)
		}
	}
}
