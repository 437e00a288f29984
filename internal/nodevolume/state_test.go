package nodevolume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var keyA, keyB = PublishKey{PodUID: "p", SpecName: "a"}, PublishKey{PodUID: "p", SpecName: "b"}

// attachedAs is a volume whose attachment was read, and the facts about it.
func attachedAs(uid string, state PodState) (*VolumeState, Facts) {
	l, node := &VolumeState{}, Node{InUse: Yes, Attached: Yes, Changes: 1}
	l.Read(l.BeginRead(node), Attachment{Attached: Yes, UID: uid})
	return l, Facts{
		Node: node, AttachRequired: Yes, Driver: Driver{Registered: true, Stages: Yes},
		Pod: func(*PodVolume) PodFacts { return PodFacts{PodState: state, Wants: true} },
	}
}

// TestVolumeState goes from the first decision to the last, with what has to be on the disk before each call.
func TestVolumeState(t *testing.T) {
	state := PodState{Set: true, Resolved: true}
	l, facts := attachedAs("va-1", state)
	l.EnsurePod(keyA)
	intent := Record{Driver: "d", Handle: "h", Path: "x", BootID: "boot"}
	step := func(want Step) Call {
		t.Helper()
		decision := l.Decide(now, facts)
		if diff := cmp.Diff(want, decision.Next); diff != "" {
			t.Fatalf("next (-want +got):\n%s\nholds %v", diff, decision.Waits)
		}
		call := l.Begin(decision.Next, intent, nil)
		l.Recorded(call)
		return call
	}
	staged := step(StageVolume{For: keyA})
	if r := staged.Record; !staged.Write || !r.InUse || r.AttachmentUID != "va-1" || l.Stage.Phase != Uncertain {
		t.Errorf("before the stage: %+v; the phase is %s", staged, l.Stage.Phase)
	}
	l.End(staged, staged.After(OK), Confirmation{At: now})
	l.EndStep(staged.Step)
	if l.StillValid(facts.Node, Yes) {
		t.Error("the attachment counts after a call that may have taken hours")
	}
	l.Read(l.BeginRead(facts.Node), Attachment{Attached: Yes, UID: "va-1"})
	published := step(Publish{Key: keyA})
	l.End(published, published.After(OK), Confirmation{At: now})
	if p := l.EnsurePod(keyA); p.Phase != Confirmed || !p.Record.Confirmed || p.ConfirmedAt.At != now {
		t.Errorf("published: %+v", p)
	}
	facts.Pod = func(*PodVolume) PodFacts { return PodFacts{PodState: PodState{Removed: true}} }
	l.UsersSearched(false, now, 0)
	taken := step(Unpublish{Key: keyA})
	if !taken.Write || !taken.Record.Leaving || taken.Record.Confirmed || !taken.Earlier.Confirmed {
		t.Errorf("before the unpublish: %+v", taken)
	}
	l.End(taken, taken.After(NoAnswer), Confirmation{})
	if again := l.Begin(taken.Step, Record{}, nil); again.Write {
		t.Error("the mark of the unmount is written twice")
	}
	l.End(taken, taken.After(OK), Confirmation{})
	l.EndStep(taken.Step)
	l.UsersSearched(false, now, 0)
	unstaged := step(Unstage{})
	l.End(unstaged, unstaged.After(OK), Confirmation{})
	if decision := l.Decide(now, facts); decision.InUse != No || decision.Forget || len(l.Pods) > 0 {
		t.Errorf("in the end: %+v, pods %v", decision, l.Pods)
	}
	facts.Node.InUse = No
	if decision := l.Decide(now, facts); !decision.Forget {
		t.Errorf("when the Node does not list it: %+v", decision)
	}
}

// Each pod has its own failures, those of a mount end with the pod's release, and a wake ends all back-offs.
func TestFailuresOfAVolume(t *testing.T) {
	l := &VolumeState{}
	for _, step := range []Step{Publish{Key: keyA}, Publish{Key: keyA}, Unpublish{Key: keyB}, Unstage{}} {
		l.Failed(step, now, 0, false)
	}
	l.Failed(Unpublish{Key: keyB}, now, 0, true)
	l.UsersSearched(true, now, 0)
	l.UsersSearched(true, now, 0)
	got := []int{l.EnsurePod(keyA).Failure.Count, l.EnsurePod(keyB).Failure.Count, l.Unstage.Count, l.Users.Search.Count}
	if diff := cmp.Diff([]int{2, 2, 1, 2}, got); diff != "" {
		t.Errorf("failures of a, of b, of the unstage, and looks that found users (-want +got):\n%s", diff)
	}
	l.Wake()
	for name, f := range map[string]Failure{"a": l.EnsurePod(keyA).Failure, "b": l.EnsurePod(keyB).Failure, "unstage": l.Unstage, "users": l.Users.Search} {
		if !f.At.IsZero() || f.Count == 0 {
			t.Errorf("%s after a wake: %+v", name, f)
		}
	}
	l.Failed(Publish{Key: keyA}, now, 0, false)
	l.UsersSearched(true, now, 0)
	for name, f := range map[string]Failure{"a": l.EnsurePod(keyA).Failure, "users": l.Users.Search} {
		if !f.At.IsZero() || f.Count != 3 {
			t.Errorf("%s after an attempt that was made before the wake: %+v", name, f)
		}
	}
	l.Decide(now, Facts{Pod: func(*PodVolume) PodFacts { return PodFacts{PodState: PodState{Set: true}, Wants: true} }})
	l.Failed(ReadAttachment{For: keyA}, now, 0, false)
	if wait := l.EnsurePod(keyA).Failure.retryAt().Sub(now); wait <= 0 || wait > attachmentWait {
		t.Errorf("the attachment is read again after %v", wait)
	}
	l.Failed(Publish{Key: keyA}, now, 0, true)
	l.Succeeded(Unstage{})
	if l.EnsurePod(keyA).Failure.Count != 0 || l.Unstage.Count != 0 {
		t.Errorf("after the release and a success: %+v, %+v", l.EnsurePod(keyA).Failure, l.Unstage)
	}
}

// TestUserSearchIsValidForOneStep, and not for the next turn.
func TestUserSearchIsValidForOneStep(t *testing.T) {
	for name, passes := range map[string]func(*VolumeState){
		"another turn": (*VolumeState).BeginTurn,
		"a call":       func(l *VolumeState) { l.EndStep(Unpublish{Key: keyA}) },
	} {
		l := &VolumeState{}
		l.UsersSearched(false, now, 0)
		l.EndStep(LookForUsers{Key: keyA})
		if l.Users.Found != No {
			t.Fatalf("%s: found %s at once", name, l.Users.Found)
		}
		if passes(l); l.Users.Found != Unknown {
			t.Errorf("after %s: found %s", name, l.Users.Found)
		}
	}
}

// TestDemandOfAPod by what has been said of the pod.
func TestDemandOfAPod(t *testing.T) {
	mounted, leaving := MountState{Phase: Confirmed}, MountState{Phase: Uncertain, Record: Record{Leaving: true}}
	tests := map[string]struct {
		pod         PodFacts
		place       MountState
		unaccounted bool
		want        Demand
	}{
		"known from a record alone":                 {PodFacts{}, mounted, false, DemandUnknown},
		"of a record, being unmounted":              {PodFacts{}, leaving, false, Released},
		"all were set but this one":                 {PodFacts{PodState: PodState{PodsSynced: true}}, mounted, false, Released},
		"set, wants it":                             {PodFacts{PodState: PodState{Set: true}, Wants: true}, MountState{}, false, Wanted},
		"set, not known yet what it wants":          {PodFacts{PodState: PodState{Set: true}}, MountState{}, false, DemandUnknown},
		"set, does not want it and never had it":    {PodFacts{PodState: PodState{Set: true, Resolved: true}}, MountState{}, false, Released},
		"set, does not want it and has it":          {PodFacts{PodState: PodState{Set: true, Resolved: true}}, mounted, false, DemandUnknown},
		"over, and its containers may run":          {PodFacts{PodState: PodState{Set: true, Ending: true}, Wants: true}, mounted, false, Ending},
		"its containers have ended":                 {PodFacts{PodState: PodState{Set: true, Removed: true}, Wants: true}, mounted, false, Released},
		"being deleted, not mounted":                {PodFacts{PodState: PodState{Set: true, Deleting: true}, Wants: true}, MountState{}, false, Released},
		"being deleted, mounted":                    {PodFacts{PodState: PodState{Set: true, Deleting: true}, Wants: true}, mounted, false, Wanted},
		"being deleted, perhaps mounted unrecorded": {PodFacts{PodState: PodState{Set: true, Deleting: true}, Wants: true}, MountState{}, true, Wanted},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.pod.demand(&PodVolume{Key: keyA, MountState: test.place}, test.unaccounted); got != test.want {
				t.Errorf("claim: %s, want %s", got, test.want)
			}
		})
	}
}

// TestInheritedMounts: of the records that were there at the start.
func TestInheritedMounts(t *testing.T) {
	record := Record{Kind: PublishKind, BootID: "boot", Pod: RecordPod{UID: "p"}, SpecName: "a"}
	earlier, unknown := record, record
	earlier.BootID, unknown.BootID = "earlier", ""
	tests := map[string]struct {
		record  Record
		mounted Knowledge
		want    bool
	}{
		"of this boot, mounted":         {record, Yes, true},
		"of this boot, unknown":         {record, Unknown, true},
		"of this boot, nothing mounted": {record, No, false},
		"of an earlier boot":            {earlier, Yes, false},
		"torn, of an unknown boot":      {unknown, Yes, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := &VolumeState{}
			l.AddRecord(test.record, "boot", test.mounted)
			p := l.EnsurePod(keyA)
			if p.Phase != Uncertain || p.Inherited != test.want {
				t.Errorf("phase %s, may be run on: %v", p.Phase, p.Inherited)
			}
			if l.End(Call{Step: Publish{Key: keyA}}, Confirmed, Confirmation{At: time.Now()}); p.Inherited {
				t.Error("unknown, though the driver has confirmed it")
			}
		})
	}
}
