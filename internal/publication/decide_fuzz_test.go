package publication

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/testing/fuzzinput"
)

// FuzzDecide makes a snapshot out of any bytes and checks what must hold of every decision. The rules of the oracle are written
// from the invariants S1, S4, S5 and S10, not from the code.
func FuzzDecide(f *testing.F) {
	for _, seed := range fuzzinput.Seeds(4000, 220) {
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
	for i := range seen.Attachments {
		a := &seen.Attachments[i]
		a.Beside = !seen.Exclusive && !a.Gone && in.Below(4) == 1
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
	if a.NodeID == "" && a.RecordedNodeID == "" {
		a.UnpublishProblem = "the node has no ID"
	}
	a.AttachError, a.DetachError = fuzzinput.Pick(in, "", "refused"), fuzzinput.Pick(in, "", "refused")
	a.Drift = fuzzinput.Pick(in, NoDrift, NoDrift, NotPublished, StillPublished, PublishedElsewhere, Abandoned)
	if a.Drift == Abandoned {
		a.DriftNodeID = "id-y"
	}
	a.Inputs = fuzzinput.Pick(in, "1", "2")
	a.SameMachine = fuzzinput.Pick(in, "", "", "id-x", "id-"+name)
	for _, id := range []string{"id-y", "id-x", "id-a"} {
		if in.Below(3) == 1 {
			a.UnpublishedFrom = append(a.UnpublishedFrom, id)
		}
		if in.Bool() {
			answer := NodesAnswer{InUse: fuzzinput.Pick(in, decision.No, decision.Yes, decision.Unknown), At: noon.Add(-time.Duration(in.Below(10)) * time.Second)}
			a.Asked = mapWith(a.Asked, id, answer)
		}
	}
	if in.Bool() && !a.Untouched {
		a.Call = callFrom(in, fuzzinput.Pick(in, "id-"+name, "id-x"))
	}
	if in.Below(5) == 1 {
		return refused(a)
	}
	return a
}

// refused is an attachment for which all is stored, and the driver refuses the publish because another node has the volume.
func refused(a Attachment) Attachment {
	a.Deleting, a.Attached, a.Finalizer, a.Untouched, a.UnconfirmedWrite, a.VolumeUnrecorded = false, false, true, false, false, false
	a.VolumeProtected, a.VolumeUnprotected, a.PublishProblem, a.UnpublishProblem, a.Drift, a.DriftNodeID = true, false, "", "", NoDrift, ""
	a.NodeID = "id-" + strings.TrimPrefix(a.Name, "csi-")
	a.RecordedNodeID = a.NodeID
	a.Call = Call{}.Begin(Publish, a.NodeID, "1", false).Fail(noon.Add(-time.Hour), "in use", false)
	a.Call.Refused = true
	return a
}

func mapWith(asked map[string]NodesAnswer, id string, answer NodesAnswer) map[string]NodesAnswer {
	if asked == nil {
		asked = map[string]NodesAnswer{}
	}
	asked[id] = answer
	return asked
}

// doubtFrom is what a publish that failed leaves at a driver that may answer too early.
func doubtFrom(in *fuzzinput.Source, c Call, at time.Time) Call {
	c.NotFound, c.Refused = in.Below(3) == 1, in.Below(3) > 0
	if c.Verb == Publish && in.Bool() {
		c = c.DoubtUntil(at.Add(2*time.Minute), in.Bool())
		if listed := at.Add(time.Duration(in.Byte()) * time.Second); c.Doubt.Sole && in.Below(4) == 1 && listed.Before(noon) {
			c.Doubt.Listed = listed
		}
	}
	return c
}

// callFrom makes a call by what may happen to one, so that no other than a possible one is made.
func callFrom(in *fuzzinput.Source, nodeID string) Call {
	var c Call
	at := noon.Add(-10 * time.Minute)
	for range 1 + in.Below(3) {
		verb := fuzzinput.Pick(in, Publish, Unpublish)
		at = at.Add(time.Duration(in.Below(200)) * time.Second)
		id := fuzzinput.Pick(in, nodeID, nodeID, "id-x")
		switch in.Below(7) {
		case 0:
			c = c.Refuse(verb, id, "1").Fail(at, "refused", false)
			continue
		case 1:
			c = doubtFrom(in, c.Begin(verb, id, "1", in.Bool()).BegunAt(at).Fail(at, "busy", in.Bool()), at)
			continue
		case 2:
			return c.Begin(verb, id, "1", in.Bool()).BegunAt(at)
		case 3: // the unpublish that follows a publish without a final answer is confirmed
			c = doubtFrom(in, c.Begin(Publish, id, "1", false).Fail(at, "no answer", true), at)
			at = at.Add(time.Duration(in.Below(150)) * time.Second)
			c = c.Begin(Unpublish, id, "1", false).BegunAt(at).Confirm(at)
			continue
		case 4: // a volume that is attached elsewhere, or a node that the driver does not know
			c = doubtFrom(in, c.Begin(verb, nodeID, "1", false).Fail(at, "in use", false), at)
			continue
		}
		c = c.Begin(verb, id, "1", in.Bool()).BegunAt(at).Confirm(at)
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
		if !known || a.Beside {
			return "a step is for an attachment that is not the key's"
		}
		broken := ""
		switch x := step.(type) {
		case CallDriver:
			calls++
			broken = checkCall(seen, a, x)
		case RemoveFinalizer:
			broken = checkRemove(seen, a, d)
		case AskNodes:
			if !slices.Contains(a.UnpublishedFrom, x.NodeID) {
				broken = "Nodes are asked about a place from which nothing was unpublished"
			}
		case RecordAttached:
			if !a.Call.Confirmed || a.Call.Verb != Publish || a.Call.NodeID != a.RecordedNodeID || a.Call.InFlight {
				broken = "recorded as attached without the driver's OK for the recorded node"
			}
		case Forget:
			if !a.Gone || slices.ContainsFunc(a.Call.publishedTo(), func(id string) bool { return !standsAt(seen, a, id, d) }) {
				broken = "S1: what may be published is forgotten"
			}
		case WriteFinalizers:
			if a.RecordedNodeID != "" && x.Attachment && x.NodeID != a.RecordedNodeID && a.Finalizer && !a.Untouched && !releasedFrom(seen, a, a.RecordedNodeID) && !standsAt(seen, a, a.RecordedNodeID, d) {
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

// standsAt reports whether another attachment, which stays, is sure to unpublish the volume at a place. The recorded ID and SameMachine are of one
// machine.
func standsAt(seen Observed, a Attachment, id string, d Decision) bool {
	names := []string{id}
	if id == a.RecordedNodeID && a.SameMachine != "" {
		names = append(names, a.SameMachine)
	}
	return slices.ContainsFunc(seen.Attachments, func(other Attachment) bool {
		ends := slices.ContainsFunc(d.Steps, func(s Step) bool {
			_, removed := s.(RemoveFinalizer)
			return removed && s.Target() == other.UID
		})
		return other.UID != a.UID && !other.Gone && !ends && other.Finalizer && !other.Untouched && (slices.Contains(names, other.boundNodeID()) || slices.Contains(names, other.SameMachine))
	})
}

func checkCall(seen Observed, a Attachment, call CallDriver) string {
	switch {
	case seen.Draining:
		return "a call is sent while the attacher shuts down"
	case call.NodeID == "" && call.Verb == Publish:
		return "a publish names no node"
	case call.Verb == Unpublish:
		return checkUnpublish(seen, a, call.NodeID)
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
		begun := other.Finalizer && !other.Untouched && !other.Gone && !releasedFrom(seen, other, other.boundNodeID())
		unclear := slices.ContainsFunc(placesOf(other.Call), func(last Call) bool { return last.NodeID != call.NodeID && doubtful(last) })
		held := begun || unclear || other.Call.InFlight || other.Attached || other.UnconfirmedWrite || other.Deleting || !other.Gone && slices.ContainsFunc(other.Call.publishedTo(), func(id string) bool { return !releasedFrom(seen, other, id) }) ||
			other.Gone && slices.ContainsFunc(other.Call.publishedTo(), func(id string) bool { return id != call.NodeID })
		if other.UID != a.UID && held {
			return "S1: published while it is, or may be, published for " + other.Name
		}
	}
	return ""
}

// placesOf are the last calls for each node ID.
func placesOf(c Call) []Call { return append(slices.Clone(c.Previous), c) }

// doubtful: a publish may take effect, whatever the driver answered since.
func doubtful(last Call) bool {
	return last.Doubt != nil && !last.Precaution && (last.InFlight || !last.confirmed(Unpublish, last.NodeID) || last.Ended.Before(last.Doubt.Until))
}

// releasedFrom: the driver confirmed that the volume is not at the node ID. Or it knows no such place, and the same machine by another ID from
// which it confirmed that, or for which another attachment stands.
func releasedFrom(seen Observed, a Attachment, id string) bool {
	last := a.Call.at(id)
	confirmed := func(last Call) bool { return last.confirmed(Unpublish, last.NodeID) && !doubtful(last) }
	if confirmed(last) {
		return true
	}
	unknown := last.Verb == Unpublish && !last.InFlight && !last.Confirmed && last.NotFound && last.Doubt == nil
	if unknown && last.OnRecord && !a.Gone && a.RecordedNodeID != "" && id != a.RecordedNodeID {
		return true // another process replaced the record, which it does only where the volume is not
	}
	if id != a.RecordedNodeID || a.SameMachine == "" || last.Verb != Unpublish || last.InFlight || last.Confirmed || !last.NotFound || doubtful(last) {
		return false
	}
	return confirmed(a.Call.at(a.SameMachine)) || slices.ContainsFunc(seen.Attachments, func(other Attachment) bool {
		return other.UID != a.UID && !other.Deleting && !other.Gone && other.Finalizer && !other.Untouched &&
			(other.RecordedNodeID == a.SameMachine || other.SameMachine == a.SameMachine)
	})
}

// checkUnpublish: a place that is not the attachment's is unpublished only where the driver confirmed that once, no other attachment is for it,
// and a Node said a moment ago that it does not list the volume in use (S1, S2).
func checkUnpublish(seen Observed, a Attachment, id string) string {
	if needed(seen, a, id) {
		return "S2: unpublished at " + id + ", where another attachment has it"
	}
	called := slices.ContainsFunc(placesOf(a.Call), func(last Call) bool { return last.NodeID == id })
	if called || slices.Contains([]string{a.RecordedNodeID, a.NodeID, a.SameMachine, a.DriftNodeID}, id) {
		return ""
	}
	for _, other := range seen.Attachments {
		if !other.Gone && (other.boundNodeID() == id || other.NodeID == id) {
			return "S2: unpublished at " + id + ", which is the place of " + other.Name
		}
	}
	if answer := a.Asked[id]; !slices.Contains(a.UnpublishedFrom, id) || answer.InUse != decision.No || noon.Sub(answer.At) > 5*time.Second {
		return "S2: unpublished at " + id + ", where a Node may use the volume"
	}
	return ""
}

// needed: another attachment is attached at the place, so that pods may use the volume through it.
func needed(seen Observed, a Attachment, id string) bool {
	return slices.ContainsFunc(seen.Attachments, func(other Attachment) bool {
		return other.UID != a.UID && !other.Gone && !other.Deleting && other.Attached && other.RecordedNodeID == id && !releasedFrom(seen, other, id)
	})
}

// checkRemove is S5.
func checkRemove(seen Observed, a Attachment, d Decision) string {
	switch {
	case !a.Deleting || a.Gone:
		return "S5: the finalizer is taken off an attachment that is not being deleted"
	case a.Untouched:
		return ""
	case slices.ContainsFunc(placesOf(a.Call), func(last Call) bool { return doubtful(last) && (last.InFlight || noon.Before(last.Doubt.Until)) }):
		return "S5: the finalizer is taken off while a publish may take effect"
	case slices.ContainsFunc(a.Call.publishedTo(), func(id string) bool { return !releasedFrom(seen, a, id) && !standsAt(seen, a, id, d) }):
		return "S5: the finalizer is taken off while a call of this process may have published the volume"
	case a.RecordedNodeID != "" && !releasedFrom(seen, a, a.RecordedNodeID) && !standsAt(seen, a, a.RecordedNodeID, d):
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
		busy := !a.Gone && !a.Beside && (!a.Deleting && !a.Attached || a.Deleting && a.Finalizer)
		if busy && !steps && !told[a.Name] {
			return "nothing is done for " + a.Name + ", and no wait is named"
		}
	}
	return ""
}
