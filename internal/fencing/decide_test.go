package fencing

import (
	"testing"
	"time"

	"belay.dev/belay/internal/decision"
)

// TestFence takes a node that has lost its power from Suspected to Released.
func TestFence(t *testing.T) {
	s := newStand(t)
	s.until(Detaching)
	for _, pair := range [][2]int{{count[Taint](s), 1}, {count[Isolate](s), 1}, {count[DeletePod](s), 1}, {count[Command](s), 1}} {
		if pair[0] != pair[1] {
			t.Fatalf("steps %T: %d, want %d", s.did, pair[0], pair[1])
		}
	}
	s.until(Moved)
	if d := s.waits(); d.Reason != AwaitingBoot || d.Proof.Class() != PoweredOff {
		t.Fatalf("waits for %s, want AwaitingBoot, with the proof %+v", d.Reason, d.Proof)
	}
	s.power, s.seen.Now, s.seen.Ready, s.seen.Renewed = PowerOn, boot2, Yes, true
	s.until(Releasing)
	if s.seen.OutOfService == false {
		t.Fatal("the taint went before the phase that says so was stored")
	}
	s.until(Released)
	if s.seen.OutOfService || s.seen.Isolated {
		t.Fatal("a taint is left")
	}
	if settled := s.now.Sub(s.fence.Untainted); settled < SettleFor {
		t.Fatalf("pods were admitted %v after the untaint", settled)
	}
}

// TestBracket (hole 1): power that comes back between the first answer and the taint keeps every pod, and removes the taint again.
func TestBracket(t *testing.T) {
	s := newStand(t)
	for count[Taint](s) == 0 {
		s.turn()
	}
	s.power = PowerOn
	for range 5 {
		s.turn()
	}
	if count[DeletePod](s) != 0 || s.seen.OutOfService {
		t.Fatalf("after On: %d pods deleted, tainted: %t (%T)", count[DeletePod](s), s.seen.OutOfService, s.did)
	}
	// The second answer must be to a question that was asked after the taint.
	s = newStand(t)
	for count[Taint](s) == 0 {
		s.turn()
	}
	s.seen.TaintSeen = s.now.Add(time.Minute)
	for range 50 {
		s.turn()
	}
	if count[DeletePod](s) != 0 {
		t.Fatal("a pod was deleted on an answer from before the taint")
	}
}

// TestStoredEvidence (hole 4): for a new leader, or one whose etcd was restored, what was stored authorizes nothing: it listens first, and
// asks the switch itself.
func TestStoredEvidence(t *testing.T) {
	for _, phase := range []Phase{Tainting, Evicting, Detaching} {
		s := newStand(t)
		s.seen.Silent = false
		s.fence.Phase, s.fence.Evidence, s.fence.Intent.Nonce, s.seen.Isolated = phase, PoweredOff, "n", true
		d := s.waits()
		if count[Taint](s)+count[DeletePod](s)+count[DeleteAttachment](s) != 0 || d.Proof.Class() != "" {
			t.Errorf("%s with the power on: %T", phase, s.did)
		}
	}
}

// TestNewLeaderListens (hole 4): although the switch says Off, a leader that has not heard the node be silent itself takes nothing away.
func TestNewLeaderListens(t *testing.T) {
	for _, phase := range []Phase{Tainting, Evicting, Detaching} {
		s := newStand(t)
		s.seen.Silent, s.power = false, PowerOff
		s.fence.Phase, s.fence.Evidence, s.fence.Intent.Nonce, s.seen.Isolated = phase, PoweredOff, "n", true
		d := s.waits()
		if count[Taint](s)+count[DeletePod](s)+count[DeleteAttachment](s) != 0 || d.Proof.Class() != "" || d.Reason != SilenceTooShort {
			t.Errorf("%s: %s, steps %T", phase, d.Reason, s.did)
		}
		s.seen.Silent = true
		s.until(Moved)
	}
}

// TestOldAnswer (hole 4): an answer authorizes for five seconds after the question, without what the switch took to answer it, as far as that can be true.
func TestOldAnswer(t *testing.T) {
	s := newStand(t)
	s.until(Tainting)
	s.seen.ReadAt = s.now
	const all = MaxLevels * LevelWithin
	for _, c := range []struct {
		age, took time.Duration
		want      bool
	}{
		{FreshFor, 0, true}, {FreshFor + time.Millisecond, 0, false}, {-time.Millisecond, 0, false},
		{FreshFor + 6*time.Second, 6 * time.Second, true}, {FreshFor + 6*time.Second + 1, 6 * time.Second, false}, {FreshFor + time.Second, -time.Hour, false},
		{FreshFor + all, all, true}, {FreshFor + all + 1, time.Hour, false}, {-time.Millisecond, time.Second, false},
	} {
		s.seen.Source.Status.Asked, s.seen.Source.Status.Took = s.now.Add(-c.age), c.took
		d := Decide(s.now, s.fence, s.seen)
		taints := len(d.Steps) > 0 && d.Steps[0] == Step(Taint{NodeUID: boot1.NodeUID, Version: "7"})
		if taints != c.want {
			t.Errorf("an answer that took %v to a question asked %v ago: taints %t, want %t", c.took, c.age, taints, c.want)
		}
	}
}

// TestLateOff (hole 5): the taints are removed only after the time by which a command is carried out or lost, and the isolation only if the switch
// said On after that.
func TestLateOff(t *testing.T) {
	s := newStand(t)
	s.fence.Phase, s.fence.Evidence = Releasing, Restarted
	s.fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor)}
	s.seen.Now, s.seen.Ready, s.seen.Attachments, s.seen.OutOfService, s.seen.Isolated = boot2, Yes, nil, true, true
	s.seen.Source.Status = s.answer()
	if d := Decide(s.now, s.fence, s.seen); d.Reason != IntentOpen || !d.RecheckAt.Equal(s.fence.Intent.NotAfter) || len(d.Steps) != 0 {
		t.Fatalf("while the command may still be carried out: %+v", d)
	}
	s.now = s.fence.Intent.NotAfter.Add(time.Second)
	s.power = PowerOff
	if d := s.waits(); d.Reason != AwaitingSource || s.seen.OutOfService || !s.seen.Isolated {
		t.Fatalf("while the switch says Off: %+v", d)
	}
	s.power = PowerOn
	s.until(Released)
}

// TestWrongMachine (hole 6): a switch counts only if the node's own hardware said On under this boot.
func TestWrongMachine(t *testing.T) {
	for name, change := range map[string]func(*Source){
		"never said On":       func(x *Source) { x.SaidOn = Boot{} },
		"said On before":      func(x *Source) { x.SaidOn = boot2 },
		"other hardware":      func(x *Source) { x.Machine = other.Machine },
		"shared address":      func(x *Source) { x.Shared = true },
		"not configured":      func(x *Source) { x.Name = "" },
		"hardware not stated": func(x *Source) { x.Machine = "" },
	} {
		s := newStand(t)
		change(&s.seen.Source)
		d := s.waits()
		if d.Reason != NoEvidence || count[Taint](s)+count[Command](s) != 0 {
			t.Errorf("%s: %s, steps %T", name, d.Reason, s.did)
		}
	}
	unknown := boot1
	unknown.ID = ""
	if (Source{Name: "ipmi", SaidOn: unknown, Machine: unknown.Machine}).bound(unknown) {
		t.Error("a switch is bound to a boot that is not known in full")
	}
	// The hardware behind the address was swapped after that.
	s := newStand(t)
	s.until(Tainting)
	s.seen.Source.Status.Machine = other.Machine
	if s.seen.Source.off(s.now, boot1) {
		t.Error("another machine's Off counts")
	}
}

// TestFalseOff (hole 7): a renewal by a boot whose switch answered Off holds everything.
func TestFalseOff(t *testing.T) {
	for _, phase := range []Phase{Tainting, Evicting, Detaching, Moved} {
		s := newStand(t)
		s.until(phase)
		deleted := count[DeletePod](s)
		s.seen.Renewed, s.power = true, PowerOff
		for range 20 {
			d := Decide(s.now, s.fence, s.seen)
			if d.Proof.Class() != "" {
				t.Fatalf("%s: a boot that renews its lease is proven to have ended", phase)
			}
			if !s.turn() {
				s.now = s.now.Add(time.Second)
			}
		}
		if count[DeletePod](s) != deleted {
			t.Errorf("%s: a pod was deleted", phase)
		}
		if phase == Tainting && s.seen.OutOfService {
			t.Error("the taint stays on a node that lives")
		}
	}
}

// TestRestartedNeverTaints (hole 9): a new boot of the machine proves that the old one has ended, and is not evicted.
func TestRestartedNeverTaints(t *testing.T) {
	for _, phase := range []Phase{Fencing, Tainting, Evicting, Detaching} {
		s := newStand(t)
		s.until(phase)
		deleted, tainted := count[DeletePod](s), count[Taint](s)
		s.seen.Now, s.seen.Ready, s.seen.Renewed, s.power = boot2, Yes, true, PowerOn
		s.seen.Attachments = nil
		for s.fence.Phase != Released && s.fence.Phase != Cancelled {
			if !s.turn() {
				s.now = s.now.Add(time.Second)
			}
		}
		if count[DeletePod](s) != deleted || count[Taint](s) != tainted {
			t.Errorf("%s: %T", phase, s.did)
		}
	}
}

// TestDeletedNode (hole 12): a Node that is deleted in the middle has nothing to taint. Its VolumeAttachments are deleted by UID and version
// once the machine is off, and the same boot that registers again is a contradiction.
func TestDeletedNode(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	s.seen.Exists, s.seen.Now, s.power = No, Boot{}, PowerOff
	s.until(Moved)
	if count[Taint](s) != 0 || count[DeleteAttachment](s) != 1 {
		t.Fatalf("steps %T", s.did)
	}
	s.seen.Exists, s.seen.Now, s.seen.Renewed = Yes, boot1, true
	if d := s.waits(); d.Reason != Contradicted {
		t.Fatalf("the same boot registers again: %s", d.Reason)
	}
}

// TestReplacedNode (hole 3): another machine under the name proves nothing about the first one, and is not tainted.
func TestReplacedNode(t *testing.T) {
	s := newStand(t)
	s.seen.Source.Name = ""
	s.seen.Now, s.seen.Ready, s.seen.Renewed = other, Yes, true
	d := s.waits()
	if d.Reason != NoEvidence || count[Taint](s)+count[Isolate](s)+count[DeleteAttachment](s) != 0 || d.Proof.Class() != "" {
		t.Fatalf("%s: %T", d.Reason, s.did)
	}
}

// TestReplacedMachineIsNotKeptFromItsOwnFence: a fence whose machine another one has replaced under the name ends when no VolumeAttachment of its boot is left
// that is not being deleted, whatever pods run under the name, and once its volumes have moved whether or not the other machine is Ready.
func TestReplacedMachineIsNotKeptFromItsOwnFence(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stand)
		ends   bool
	}{
		"a VolumeAttachment":        {func(*stand) {}, false},
		"one that is being deleted": {func(s *stand) { s.seen.Attachments[0].Deleting = true }, true},
		"pods of the name alone":    {func(s *stand) { s.seen.Attachments = nil }, true},
		"and it is not replaced":    {func(s *stand) { s.seen.Attachments, s.seen.Now = nil, boot1 }, false},
		"and volumes were taken":    {func(s *stand) { s.seen.Attachments, s.fence.StorageProven = nil, true }, false},
	} {
		s := newStand(t)
		s.seen.Source.Name = "" // as that of the other machine
		s.until(Fencing)
		s.seen.Now, s.seen.Ready, s.seen.Silent = other, No, true
		c.change(s)
		s.waits()
		if (s.fence.Phase == Cancelled) != c.ends || count[DeletePod](s)+count[DeleteAttachment](s)+count[Command](s)+count[Taint](s) != 0 {
			t.Errorf("%s: %s after %T", name, s.fence.Phase, s.did)
		}
	}
	s := newStand(t)
	s.until(Moved)
	s.seen.Now, s.seen.Ready, s.seen.Silent = other, No, true
	s.until(Released)
}

// TestSignOfLifeBeforeOff: a node that comes back before anything was sent keeps its pods, and the isolation goes.
func TestSignOfLifeBeforeOff(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	s.seen.Renewed = true
	s.until(Cancelled)
	s.turn()
	if s.seen.Isolated || count[Command](s) != 0 {
		t.Fatalf("steps %T", s.did)
	}
}

// TestLiveReadBeforeOff (hole 16): the command is stored no later than a second after the node was read, and not before that by the clock.
func TestLiveReadBeforeOff(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	s.turn() // the question
	for _, age := range []time.Duration{LiveFor + time.Millisecond, -time.Millisecond} {
		s.seen.ReadAt = s.now.Add(-age)
		if step := Decide(s.now, s.fence, s.seen).Steps[0]; step != (ReadNode{}) {
			t.Errorf("read %v ago: the step is %T", age, step)
		}
	}
}

// TestStatement (class E): a person's word about this machine counts until it expires, and not against a switch that says On.
func TestStatement(t *testing.T) {
	said := Statement{By: "jo", Reason: "pulled the plug", Machine: boot1.Machine, Made: start, Expires: start.Add(time.Hour), Guarded: true}
	for name, test := range map[string]struct {
		change func(*stand)
		want   Phase
	}{
		"as it is":      {func(s *stand) { s.seen.Source = Source{} }, Moved},
		"other machine": {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Machine = other.Machine }, Fencing},
		"expired":       {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Expires = start }, Fencing},
		"for a day":     {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Expires = start.Add(StatementFor) }, Moved},
		"for more than a day": {func(s *stand) {
			s.seen.Source, s.fence.Statement.Expires = Source{}, start.Add(StatementFor+2*statementSlack)
		}, Fencing},
		"made days ago, for a week": {func(s *stand) {
			s.seen.Source, s.fence.Statement.Made = Source{}, start.Add(-6*StatementFor)
		}, Fencing},
		"made by a clock that is ahead": {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Made = s.now.Add(statementSlack) }, Moved},
		"made in the future, for a day": {func(s *stand) {
			s.seen.Source = Source{}
			s.fence.Statement.Made, s.fence.Statement.Expires = start.Add(30*StatementFor), start.Add(31*StatementFor)
		}, Fencing},
		"made at an unknown time":  {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Made = time.Time{} }, Fencing},
		"no policy guards it":      {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Guarded = false }, Fencing},
		"without a name":           {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.By = "" }, Fencing},
		"no reason":                {func(s *stand) { s.seen.Source = Source{}; s.fence.Statement.Reason = "" }, Fencing},
		"the switch says On":       {func(s *stand) { s.disobeys = true }, Fencing},
		"the switch says nothing":  {func(s *stand) { s.disobeys, s.power = true, PowerUnknown }, Moved},
		"the switch is locked out": {func(s *stand) { s.seen.Source.Locked = true }, Moved},
	} {
		s := newStand(t)
		statement := said
		s.fence.Statement = &statement
		test.change(s)
		s.waits()
		if s.fence.Phase != test.want {
			t.Errorf("%s: %s, want %s (%T)", name, s.fence.Phase, test.want, s.did)
		}
	}
}

// TestSilentSwitch: while a switch that did not answer is asked again, the fence says so: it is asked all the time, and there is no other wait.
func TestSilentSwitch(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	s.seen.Source.Running = true
	if d := Decide(s.now, s.fence, s.seen); d.Reason != AwaitingSource {
		t.Errorf("before the first answer: %s", d.Reason)
	}
	for power, want := range map[Power]decision.Reason{PowerUnknown: SourceSilent, PowerOn: AwaitingSource} {
		s.seen.Source.Status = Answer{Power: power, Asked: s.now.Add(-time.Minute)}
		if d := Decide(s.now, s.fence, s.seen); d.Reason != want || len(d.Steps) > 0 {
			t.Errorf("%v: %s and %v, want %s", power, d.Reason, d.Steps, want)
		}
	}
}

// TestSwitchThatIgnoresTheCommandSlowly: a switch whose agent takes longer than AskEvery is asked again at once, so the fence says while the next
// agent runs that the machine ignores the command. An answer from before the command says nothing about that.
func TestSwitchThatIgnoresTheCommandSlowly(t *testing.T) {
	for name, test := range map[string]struct {
		power Power
		asked time.Duration // after the command was stored
		now   time.Duration // likewise
		want  decision.Reason
	}{
		"On after the command":                {PowerOn, time.Second, 3 * time.Second, NotOff},
		"On before the command":               {PowerOn, -time.Second, time.Second, AwaitingSource},
		"Off after the command, too late":     {PowerOff, time.Second, 8 * time.Second, AwaitingSource},
		"nothing":                             {PowerUnknown, time.Second, 3 * time.Second, SourceSilent},
		"On, and the command is lost by now":  {PowerOn, time.Second, IntentFor, AwaitingSource},
		"On, before the command can be lost":  {PowerOn, time.Second, IntentFor - 1, NotOff},
		"On, asked as the command was stored": {PowerOn, 0, time.Second, AwaitingSource},
	} {
		s := newStand(t)
		s.until(Fencing)
		s.fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor)}
		s.seen.Source.Status, s.seen.Source.Running = Answer{Power: test.power, Asked: s.now.Add(test.asked), Machine: boot1.Machine}, true
		if d := Decide(s.now.Add(test.now), s.fence, s.seen); d.Reason != test.want || len(d.Steps) > 0 {
			t.Errorf("%s: %s and %v, want %s", name, d.Reason, d.Steps, test.want)
		}
	}
}

// TestLateAnswerOff: an answer Off that is too old to authorize anything has the switch asked again. A machine that is off already gets no command,
// and one that is on by now, as the next answer says, gets one.
func TestLateAnswerOff(t *testing.T) {
	for name, test := range map[string]struct {
		said    Power
		machine string
		age     time.Duration
		intent  bool // an earlier command may still be carried out
		want    Step
	}{
		"Off, too late":                       {PowerOff, boot1.Machine, FreshFor + 1, false, Ask{}},
		"Off, long ago":                       {PowerOff, boot1.Machine, time.Hour, false, Ask{}},
		"Off, too late, to a command":         {PowerOff, boot1.Machine, FreshFor + 1, true, Ask{}},
		"Off in time":                         {PowerOff, boot1.Machine, FreshFor, false, Enter{Phase: Tainting, Evidence: PoweredOff}},
		"Off, too late, of another machine":   {PowerOff, other.Machine, FreshFor + 1, false, Command{}},
		"On, too late":                        {PowerOn, boot1.Machine, FreshFor + 1, false, Command{}},
		"On in time":                          {PowerOn, boot1.Machine, FreshFor, false, Command{}},
		"On, too late, after another command": {PowerOn, boot1.Machine, FreshFor + 1, true, Ask{}},
		"the power state is not known":        {PowerUnknown, boot1.Machine, FreshFor + 1, false, Command{}},
	} {
		s := newStand(t)
		s.until(Fencing)
		s.now = s.now.Add(2 * time.Hour)
		s.seen.ReadAt, s.seen.News = s.now, s.now
		s.seen.Source.Status = Answer{Power: test.said, Asked: s.now.Add(-test.age), Machine: test.machine}
		if test.intent {
			s.fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor / 2)}
		}
		got := Decide(s.now, s.fence, s.seen).Steps
		if c, ok := got[0].(Command); ok {
			c.NotAfter = time.Time{}
			got[0] = c
		}
		if len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %#v, want %#v", name, got, test.want)
		}
	}
	s := newStand(t)
	s.until(Fencing)
	s.now = s.now.Add(time.Minute)
	s.seen.Source.Status, s.power = Answer{Power: PowerOff, Asked: s.now.Add(-2 * FreshFor), Machine: boot1.Machine}, PowerOn
	s.until(Tainting)
	if count[Command](s) != 1 || count[Ask](s) == 0 {
		t.Errorf("a machine that is on by now: %T", s.did)
	}
}

// TestSwitchThatComesBack: a switch that did not answer, and says On after the taint was set on a person's word, is believed.
func TestSwitchThatComesBack(t *testing.T) {
	s := newStand(t)
	s.disobeys, s.power = true, PowerUnknown
	s.fence.Statement = &Statement{By: "jo", Reason: "pulled the plug", Machine: boot1.Machine, Made: start, Expires: start.Add(time.Hour), Guarded: true}
	s.until(Tainting)
	for !s.seen.OutOfService {
		s.turn()
	}
	s.power = PowerOn
	s.until(Fencing)
	if s.seen.OutOfService || len(s.seen.Pods) == 0 {
		t.Errorf("tainted %t, pods %v", s.seen.OutOfService, s.seen.Pods)
	}
	if d := s.waits(); s.fence.Phase != Fencing || len(s.seen.Pods) == 0 {
		t.Errorf("%s (%s) with a switch that says On", s.fence.Phase, d.Reason)
	}
}

// TestDoubt (hole 4): what takes the evidence back in Tainting is an answer On of this moment, or a statement that has expired. An old On only
// has the switch asked again.
func TestDoubt(t *testing.T) {
	for name, test := range map[string]struct {
		evidence Class
		change   func(*stand)
		want     Step
	}{
		"On":      {PoweredOff, func(s *stand) { s.seen.Source.Status = s.answer() }, Untaint{NodeUID: boot1.NodeUID, Version: "7"}},
		"old On":  {PoweredOff, func(s *stand) { s.seen.Source.Status = s.answer(); s.now = s.now.Add(FreshFor + 1) }, Ask{}},
		"expired": {Stated, func(s *stand) { s.state(); s.seen.Source = Source{}; s.now = s.fence.Statement.Expires }, Untaint{NodeUID: boot1.NodeUID, Version: "7"}},
	} {
		s := successor(t, Tainting, test.evidence)
		test.change(s)
		if d := Decide(s.now, s.fence, s.seen); len(d.Steps) != 1 || d.Steps[0] != test.want {
			t.Errorf("%s: %#v, %s", name, d.Steps, d.Reason)
		}
	}
}

// TestSwitchThatDoesNotObey: a command that was answered is no evidence.
func TestSwitchThatDoesNotObey(t *testing.T) {
	s := newStand(t)
	s.disobeys = true
	for end := s.now.Add(2 * time.Minute); s.now.Before(end); s.now = s.now.Add(500 * time.Millisecond) {
		s.turn()
	}
	if s.fence.Phase != Fencing || count[Taint](s) != 0 || count[Command](s) < 2 {
		t.Fatalf("%s: %d commands, %d taints", s.fence.Phase, count[Command](s), count[Taint](s))
	}
}

// TestForeignTaint (hole 14): a taint of another client is never removed, and one that vanished is set again between two answers.
func TestForeignTaint(t *testing.T) {
	s := newStand(t)
	s.until(Tainting)
	s.seen.ForeignTaint, s.seen.TaintSeen = true, s.now
	s.until(Evicting)
	if count[Taint](s) != 0 {
		t.Fatal("a second taint of the same key and effect was written")
	}
	s = newStand(t)
	s.until(Evicting)
	s.seen.OutOfService, s.seen.TaintSeen, s.seen.Ended = false, time.Time{}, false
	s.until(Detaching)
	if count[Taint](s) != 2 {
		t.Fatalf("%d taints, want 2", count[Taint](s))
	}
}

// TestProof: a proof is about one boot, and a boot with an unknown field has none.
func TestProof(t *testing.T) {
	s := newStand(t)
	s.until(Evicting)
	p := Decide(s.now, s.fence, s.seen).Proof
	v := Volume{"disk.example.com", "vol-1"}
	unknown := boot1
	unknown.ID = ""
	for b, want := range map[Boot]bool{boot1: true, boot2: false, other: false, unknown: false, {}: false} {
		if p.At(s.now).Holds(b, v) != want {
			t.Errorf("%+v: %t, want %t", b, !want, want)
		}
	}
	if p.At(s.now.Add(proofFor)).Holds(boot1, v) {
		t.Error("a proof lasts for ever")
	}
	s.fence.Boot, s.seen.Ended = unknown, true
	if p := Decide(s.now, s.fence, s.seen).Proof; p.Class() == "" || p.Holds(unknown, v) {
		t.Errorf("a boot that is not known in full: %+v", p)
	}
	if (Proof{}).Holds(boot1, v) || (Proof{}).Holds(Boot{}, v) {
		t.Error("the zero Proof proves something")
	}
}

// TestOneQuestionAtATime: events that wake the actor while a question waits for its answer do not make it ask another one, which would take
// the place of the first.
func TestOneQuestionAtATime(t *testing.T) {
	s := newStand(t)
	s.until(Tainting)
	for !s.seen.OutOfService {
		s.turn()
	}
	s.seen.Source.Running = true
	if d := Decide(s.now, s.fence, s.seen); len(d.Steps) > 0 || d.Reason != AwaitingSource {
		t.Errorf("%T, %s", d.Steps, d.Reason)
	}
	s.seen.Source.Running = false
	if d := Decide(s.now, s.fence, s.seen); len(d.Steps) != 1 || d.Steps[0] != (Ask{}) {
		t.Errorf("after an answer that is too old: %v", d.Steps)
	}
}

// TestLastSignOfLife: a machine that gave a last sign of life before it was switched off is not held forever: once the command cannot
// come late, the fence ends, and the next one begins with that sign.
func TestLastSignOfLife(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	for s.fence.Intent.Nonce == "" {
		s.turn()
	}
	s.seen.Renewed = true
	for range 20 {
		s.turn()
	}
	if s.fence.Phase != Fencing || len(s.seen.Attachments) == 0 {
		t.Fatalf("%s before the command is lost", s.fence.Phase)
	}
	s.now = s.fence.Intent.NotAfter.Add(time.Second)
	s.power = PowerUnknown
	if d := s.waits(); s.fence.Phase != Fencing || d.Reason != AwaitingSource {
		t.Fatalf("%s, %s while the switch does not say whether the command was carried out", s.fence.Phase, d.Reason)
	}
	s.power = PowerOff
	s.until(Cancelled)
	if len(s.seen.Pods) == 0 || len(s.seen.Attachments) == 0 {
		t.Error("something was taken from a node that gave a sign of life")
	}
}

// TestRestartedKeepsItsVolumes (hole 15): a machine that was only restarted is released although its VolumeAttachments are still there:
// its pods use them.
func TestRestartedKeepsItsVolumes(t *testing.T) {
	s := newStand(t)
	s.until(Fencing)
	for s.fence.Intent.Nonce == "" {
		s.turn()
	}
	s.seen.Now, s.seen.Ready, s.seen.Renewed, s.power = boot2, Yes, true, PowerOn
	s.until(Released)
	if len(s.seen.Attachments) == 0 || s.seen.Isolated {
		t.Errorf("%d VolumeAttachments are left, isolated: %t", len(s.seen.Attachments), s.seen.Isolated)
	}
}

// TestNoCancelAfterDelete (hole 18): once a pod was deleted, nothing cancels the fence: upstream's timer may run by now.
func TestNoCancelAfterDelete(t *testing.T) {
	for name, change := range map[string]func(*stand){
		"opted out":         func(s *stand) { s.seen.OptedOut = true },
		"under maintenance": func(s *stand) { s.seen.Maintenance = true },
		"fence deleted":     func(s *stand) { s.fence.Deleting = true },
	} {
		s := newStand(t)
		s.fence.Statement = &Statement{By: "jo", Reason: "pulled the plug", Machine: boot1.Machine, Made: start, Expires: start.Add(time.Hour), Guarded: true}
		s.seen.Source = Source{}
		s.until(Evicting)
		change(s)
		s.until(Moved)
		if count[Untaint](s) != 0 {
			t.Errorf("%s: %T", name, s.did)
		}
	}
}
