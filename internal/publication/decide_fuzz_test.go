package publication

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"belay.dev/belay/internal/testing/fuzzinput"
)

// FuzzDecide makes a snapshot out of any bytes and checks what must hold of every decision. The rules of the oracle are written
// from the invariants S1, S4, S5 and S10, not from the code.
func FuzzDecide(f *testing.F) {
	for _, seed := range fuzzinput.Seeds(1000, 160) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		seen, policy := snapshotFrom(fuzzinput.From(input))
		before := fmt.Sprintf("%+v", seen)
		got := Decide(noon, seen, policy)
		if after := fmt.Sprintf("%+v", seen); after != before {
			t.Fatalf("the snapshot was changed from\n%s\nto\n%s", before, after)
		}
		if again := Decide(noon, seen, policy); !reflect.DeepEqual(got, again) {
			t.Fatalf("the same snapshot gave\n%+v\nand\n%+v\nfor\n%s", got, again, before)
		}
		slices.Reverse(seen.Attachments)
		if again := Decide(noon, seen, policy); !reflect.DeepEqual(got, again) {
			t.Fatalf("in another order the same snapshot gave\n%+v\nand\n%+v\nfor\n%s", got, again, before)
		}
		if broken := checkDecision(seen, got); broken != "" {
			t.Fatalf("%s\nby %+v\nfor\n%s", broken, got, before)
		}
	})
}

func snapshotFrom(in *fuzzinput.Source) (Observed, Policy) {
	seen := Observed{Exclusive: in.Below(3) > 0, Draining: in.Below(5) == 1}
	count := 1 + in.Below(3)
	for i := range count {
		seen.Attachments = append(seen.Attachments, attachmentFrom(in, string(rune('a'+i))))
	}
	return seen, Policy{RetryStart: time.Second, RetryMax: 5 * time.Minute}
}

func attachmentFrom(in *fuzzinput.Source, name string) Attachment {
	a := Attachment{UID: "uid-" + name, Name: "csi-" + name, Node: "node-" + name, Created: noon.Add(-time.Duration(in.Below(3)) * time.Second)}
	if in.Below(6) == 1 {
		a.Gone, a.Call = true, callFrom(in, "id-"+name)
		return a
	}
	if a.Deleting = in.Below(3) == 1; a.Deleting {
		a.DeletedAt = noon.Add(-time.Duration(in.Below(10)) * time.Second)
	}
	if in.Below(4) == 1 {
		a.DetachRequested = noon.Add(time.Duration(in.Below(200)-100) * time.Second)
	}
	a.Attached, a.Finalizer, a.OtherFinalizers = in.Below(3) == 1, in.Below(3) > 0, in.Below(4) == 1
	a.Untouched, a.UnconfirmedWrite, a.VolumeUnrecorded = in.Below(5) == 1 && a.Finalizer && !a.Attached, in.Below(8) == 1, in.Below(5) == 1
	own := []string{"id-" + name, "id-" + name, "id-x", ""}
	a.RecordedNodeID, a.NodeID = fuzzinput.Pick(in, own...), fuzzinput.Pick(in, own...)
	a.VolumeProtected = in.Below(3) > 0
	a.VolumeUnprotected = !a.VolumeProtected && in.Bool()
	a.PublishProblem, a.UnpublishProblem = fuzzinput.Pick(in, "", "", "", "no secret"), fuzzinput.Pick(in, "", "", "", "no secret")
	if a.NodeID == "" {
		a.PublishProblem = "the node has no ID"
	}
	a.AttachError, a.DetachError = fuzzinput.Pick(in, "", "refused"), fuzzinput.Pick(in, "", "refused")
	a.Drift = fuzzinput.Pick(in, NoDrift, NoDrift, NotPublished, StillPublished, PublishedElsewhere, Abandoned)
	if a.Drift == Abandoned {
		a.DriftNodeID = "id-y"
	}
	a.Inputs = fuzzinput.Pick(in, "1", "2")
	if in.Bool() && !a.Untouched {
		a.Call = callFrom(in, fuzzinput.Pick(in, "id-"+name, "id-x"))
	}
	return a
}

// callFrom makes a call by what may happen to one, so that no other than a possible one is made.
func callFrom(in *fuzzinput.Source, nodeID string) Call {
	var c Call
	for range 1 + in.Below(3) {
		verb := fuzzinput.Pick(in, Publish, Unpublish)
		at := noon.Add(-time.Duration(in.Byte()) * time.Second)
		id := fuzzinput.Pick(in, nodeID, nodeID, "id-x")
		switch in.Below(5) {
		case 0:
			c = c.Refuse(verb, id, "1").Fail(at, "refused", false)
			continue
		case 1:
			c = c.Begin(verb, id, "1", in.Bool()).Fail(at, "busy", in.Bool())
			continue
		case 2:
			return c.Begin(verb, id, "1", in.Bool())
		}
		c = c.Begin(verb, id, "1", in.Bool()).Confirm(at)
		c.Recorded = in.Bool()
	}
	return c
}

// checkDecision returns the first rule that a decision breaks.
func checkDecision(seen Observed, d Decision) string {
	byUID := map[string]Attachment{}
	calls := 0
	for _, a := range seen.Attachments {
		byUID[a.UID] = a
		if a.Call.InFlight {
			calls++
		}
	}
	inFlight := calls
	for _, step := range d.Steps {
		a, known := byUID[step.Target()]
		if !known {
			return "a step is for an attachment that was not seen"
		}
		broken := ""
		switch x := step.(type) {
		case CallDriver:
			calls++
			broken = checkCall(seen, a, x)
		case RemoveFinalizer:
			broken = checkRemove(a)
		case RecordAttached:
			if !a.Call.Confirmed || a.Call.Verb != Publish || a.Call.NodeID != a.RecordedNodeID || a.Call.InFlight {
				broken = "recorded as attached without the driver's OK for the recorded node"
			}
		case Forget:
			if !a.Gone || len(a.Call.publishedTo()) > 0 && !coveredBy(seen, a) {
				broken = "S1: what may be published is forgotten"
			}
		case WriteFinalizers:
			if a.RecordedNodeID != "" && x.Attachment && x.NodeID != a.RecordedNodeID && a.Finalizer && !a.Untouched && !a.Call.unpublishedFrom(a.RecordedNodeID) {
				broken = "S5: the recorded node ID is overwritten while it may be published there"
			}
		}
		if _, cancel := step.(CancelCall); cancel != (a.Call.InFlight && (a.Deleting || a.Gone) && a.Call.Verb == Publish) && a.Call.InFlight && broken == "" {
			broken = "a step is taken for an attachment whose call is in flight"
		}
		if broken != "" {
			return fmt.Sprintf("%s (%T for %s)", broken, step, a.Name)
		}
	}
	// What is in flight already may be more than one, by a leader before; no further one is sent then.
	if sent := calls - inFlight; sent > 1 || sent == 1 && inFlight > 0 {
		return fmt.Sprintf("S4: %d calls are sent beside %d in flight", sent, inFlight)
	}
	return checkTold(seen, d)
}

// coveredBy reports whether other objects for the same node IDs stand for what was published for one that is gone.
func coveredBy(seen Observed, gone Attachment) bool {
	for _, id := range gone.Call.publishedTo() {
		if !slices.ContainsFunc(seen.Attachments, func(a Attachment) bool { return !a.Gone && a.boundNodeID() == id && a.Call.called(id) }) {
			return false
		}
	}
	return true
}

func checkCall(seen Observed, a Attachment, call CallDriver) string {
	switch {
	case seen.Draining:
		return "a call is sent while the attacher shuts down"
	case call.NodeID == "" && call.Verb == Publish:
		return "a publish names no node"
	case call.Verb == Unpublish:
		return ""
	case a.Gone || a.Deleting:
		return "a publish for an attachment that is gone or being deleted"
	case !a.Finalizer:
		return "S10: a publish before the finalizer is stored"
	case call.NodeID != a.RecordedNodeID:
		return "S10: a publish for a node ID that is not recorded"
	case a.UnconfirmedWrite:
		return "S10: a publish while it is not known what is stored"
	}
	if !seen.Exclusive {
		return ""
	}
	for _, other := range seen.Attachments {
		// The finalizer stands for the calls of an earlier process (S10).
		begun := other.Finalizer && !other.Untouched && !other.Gone && !other.Call.unpublishedFrom(other.boundNodeID())
		held := begun || other.Call.InFlight || other.Attached || other.UnconfirmedWrite || other.Deleting || len(other.Call.publishedTo()) > 0 && !other.Gone ||
			other.Gone && slices.ContainsFunc(other.Call.publishedTo(), func(id string) bool { return id != call.NodeID })
		if other.UID != a.UID && held {
			return "S1: published while it is, or may be, published for " + other.Name
		}
	}
	return ""
}

// checkRemove is S5.
func checkRemove(a Attachment) string {
	switch {
	case !a.Deleting || a.Gone:
		return "S5: the finalizer is taken off an attachment that is not being deleted"
	case a.Untouched:
		return ""
	case len(a.Call.publishedTo()) > 0:
		return "S5: the finalizer is taken off while a call of this process may have published the volume"
	case a.RecordedNodeID != "" && !a.Call.unpublishedFrom(a.RecordedNodeID):
		return "S5: the finalizer is taken off before the unpublish of the recorded node was confirmed"
	}
	return ""
}

// checkTold: an attachment that is wanted and not attached has a step or a wait, and waits have an exit.
func checkTold(seen Observed, d Decision) string {
	told := map[string]bool{}
	for _, wait := range d.Waits {
		told[wait.Attachment] = true
		exit, known := exits[wait.Reason]
		switch {
		case !known:
			return fmt.Sprintf("nothing ends a wait for %q", wait.Reason)
		case !wait.Until.IsZero() && !exit.Timed:
			return fmt.Sprintf("a wait for %q ends at a time", wait.Reason)
		case !wait.Until.IsZero() && !wait.Until.After(noon):
			return fmt.Sprintf("a wait for %q ends at a time that has passed", wait.Reason)
		}
	}
	for _, a := range seen.Attachments {
		steps := slices.ContainsFunc(d.Steps, func(s Step) bool { return s.Target() == a.UID })
		busy := !a.Gone && (!a.Deleting && !a.Attached || a.Deleting && a.Finalizer)
		if busy && !steps && !told[a.Name] {
			return "nothing is done for " + a.Name + ", and no wait is named"
		}
	}
	return ""
}
