package publication

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"belay.dev/belay/internal/planted"
)

// Decide tells what to do next for one key.
//
// What it keeps: an exclusive volume is published for one attachment only while
// no other one exists or may be published (S1), with one call in flight at most
// (S4); our finalizer is taken off only after the driver confirmed the unpublish
// of the node ID recorded at attach (S5); no call is sent before the finalizer
// is stored on that very attachment (S10).
func Decide(now time.Time, seen Observed, policy Policy) Decision {
	v := volume{now: now, policy: policy, exclusive: seen.Exclusive, draining: seen.Draining}
	v.attachments = slices.Clone(seen.Attachments)
	slices.SortFunc(v.attachments, olderFirst)
	for _, a := range v.attachments {
		v.calling = v.calling || a.Call.InFlight
	}
	for _, a := range v.attachments {
		switch {
		case a.Call.InFlight && (!planted.S4 || !a.Deleting):
			v.wait(a, CallInFlight, time.Time{})
		case a.Gone:
			v.cleanUp(a)
		case a.UnconfirmedWrite:
			// The watch may still show what was so before: a node ID that has come
			// back to its old value would pass for the recorded one.
			v.do(Reread{target{a.UID}})
		case a.Deleting:
			v.detach(a)
		case !a.Attached, a.Drift == NotPublished && a.nodeUnchanged():
			v.attach(a)
		default:
			v.keepFinalizers(a)
		}
	}
	return v.decision
}

// volume is one decision in the making.
type volume struct {
	now         time.Time
	policy      Policy
	exclusive   bool
	draining    bool
	calling     bool // a call is in flight, or decided on
	attachments []Attachment
	decision    Decision
}

// olderFirst gives every observer the same order, so that of two attachments
// that both wait to begin, one goes first.
func olderFirst(a, b Attachment) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return strings.Compare(a.UID, b.UID)
}

// attach moves a wanted attachment that is not recorded as attached.
func (v *volume) attach(a Attachment) {
	if a.Finalizer && a.Call.confirmed(Publish, a.RecordedNodeID) && !a.Call.Recorded {
		v.do(RecordAttached{target{a.UID}})
		return
	}
	if other, blocked := v.blockedBy(a); blocked {
		v.waitForHolder(a, other)
		return
	}
	if a.PublishProblem != "" {
		v.report(a, Publish, a.PublishProblem)
		v.wait(a, RequestImpossible, time.Time{})
		return
	}
	if first := a.staleNodeID(); first != "" {
		v.call(a, Unpublish, first)
		return
	}
	if until := v.withdrawnUntil(a); until.After(v.now) {
		v.reportCall(a, Publish)
		v.wait(a, DetachRequested, until)
		return
	}
	if until := v.backOff(a, Publish, a.NodeID); until.After(v.now) {
		v.reportCall(a, Publish)
		v.wait(a, BackingOff, until)
		return
	}
	write := WriteFinalizers{target: target{a.UID}, NodeID: a.NodeID, Volume: !a.VolumeProtected,
		Attachment: !a.Finalizer || a.HandleUnrecorded || a.RecordedNodeID != a.NodeID}
	if write.needed() {
		if v.draining {
			v.wait(a, ShuttingDown, time.Time{})
			return
		}
		v.do(write)
		return
	}
	v.call(a, Publish, a.boundNodeID())
}

// staleNodeID is the node ID from which the volume has to be taken before it can be published
// for the attachment; empty for none.
func (a Attachment) staleNodeID() string {
	stale := a.Finalizer && !a.Untouched && a.RecordedNodeID != "" && a.RecordedNodeID != a.NodeID
	switch {
	case a.Drift == Abandoned:
		return a.DriftNodeID
	case stale && !a.Call.unpublishedFrom(a.RecordedNodeID):
		// The node came back under another node ID before the attach was recorded. Overwriting
		// the recorded one would forget what the driver may have published.
		return a.RecordedNodeID
	}
	return ""
}

// withdrawalLimit is how long an attachment is not published after the controller noted that it is about to delete it. That takes
// a second or two, unless the node still uses the volume. A request that stays may have been left by a controller that no longer
// runs.
const withdrawalLimit = time.Minute

// withdrawnUntil is when an attachment that is about to be deleted may be published after all: the unpublish would have to wait
// for a publish that hangs.
func (v *volume) withdrawnUntil(a Attachment) time.Time {
	// A request from a time to come, of a clock that is ahead, could hold the publish back for as long as that.
	if a.Attached || a.DetachRequested.IsZero() || a.DetachRequested.After(v.now.Add(withdrawalLimit)) {
		return time.Time{}
	}
	return a.DetachRequested.Add(withdrawalLimit)
}

// keepFinalizers stores our finalizers again: that of an attached volume's attachment, if
// somebody took it off, or the detach would be forgotten with the object; and that of a
// PersistentVolume that was not there, or not known, when another one of the same handle
// stood in for it.
func (v *volume) keepFinalizers(a Attachment) {
	nodeID := a.boundNodeID()
	if v.draining || nodeID == "" || a.Finalizer && !a.VolumeUnprotected {
		return
	}
	v.do(WriteFinalizers{target: target{a.UID}, NodeID: nodeID, Attachment: !a.Finalizer, Volume: a.VolumeUnprotected})
}

// confirmAfter is how long a detach may take before its success is recorded in the status,
// by a request of its own. Deleted objects show nobody why: without it, whoever watches
// could not tell a detach that took its time from a finalizer that somebody removed because
// it took so long.
const confirmAfter = 5 * time.Second

// detach moves an attachment that is being deleted. Without our finalizer it is
// none of our business: the volume was never published for it, or the unpublish
// was confirmed.
func (v *volume) detach(a Attachment) {
	if !a.Finalizer {
		v.unpublishStale(a)
		return
	}
	if a.Untouched {
		v.do(RemoveFinalizer{target{a.UID}})
		return
	}
	left := append(a.publishedTo(), v.currentNodeID(a)...)
	if len(left) == 0 || planted.S5 && a.unpublished() {
		late := a.DetachError != "" || v.now.Sub(a.DeletedAt) > confirmAfter
		if (a.OtherFinalizers || late) && (a.Attached || a.DetachError != "") {
			// The object stays for others to see, or was seen to hang: that it ends as attached
			// would then mean that somebody took the finalizer off (see confirmAfter). Status goes
			// first here: after a crash in between, the unpublish is repeated, not forgotten.
			v.do(RecordDetached{target{a.UID}})
			return
		}
		v.do(RemoveFinalizer{target{a.UID}})
		return
	}
	v.call(a, Unpublish, left[0])
}

// currentNodeID is the ID that the attachment's node has now, where another one is recorded and the volume was not taken from
// this one yet: the record may be wrong, and nobody needs the volume there any more. Another attachment of the same node
// may.
func (v *volume) currentNodeID(a Attachment) []string {
	if a.RecordedNodeID == "" || a.NodeID == "" || a.NodeID == a.RecordedNodeID || a.Call.called(a.NodeID) || v.neededAt(a, a.NodeID) {
		return nil
	}
	return []string{a.NodeID}
}

// neededAt tells whether another attachment may need the volume at a node ID.
func (v *volume) neededAt(a Attachment, nodeID string) bool {
	return slices.ContainsFunc(v.attachments, func(other Attachment) bool {
		done := other.Deleting && !other.mayBePublished() || other.Gone
		return other.UID != a.UID && !done && (other.boundNodeID() == nodeID || other.NodeID == nodeID)
	})
}

// unpublishStale takes back what the driver still lists for an attachment of which we
// have let go, unless another one may need the volume at that node. Nothing of
// it is recorded but an error, and that it is over.
func (v *volume) unpublishStale(a Attachment) {
	if a.unpublished() && a.DetachError != "" {
		v.do(RecordDetached{target{a.UID}})
		return
	}
	if a.Drift != StillPublished || a.RecordedNodeID == "" || v.neededAt(a, a.RecordedNodeID) {
		return
	}
	v.call(a, Unpublish, a.RecordedNodeID)
}

// cleanUp takes back what was published for an attachment that is gone. Gone
// without us, what was recorded as attached is taken back only when another
// attachment wants the volume: objects vanish by the hundred when a cluster is
// restored from a backup, and the pods run on. That a publish was sent again
// makes no difference.
func (v *volume) cleanUp(a Attachment) {
	left := slices.DeleteFunc(a.Call.publishedTo(), func(id string) bool {
		// A new object for the same node stands for both.
		return slices.ContainsFunc(v.attachments, func(other Attachment) bool {
			return !other.Gone && other.boundNodeID() == id && other.Call.called(id)
		})
	})
	if len(left) == 0 || planted.S5 && a.unpublished() {
		v.do(Forget{target{a.UID}})
		return
	}
	wanted := slices.ContainsFunc(v.attachments, func(other Attachment) bool {
		return !other.Gone && !other.Deleting && other.boundNodeID() != left[0]
	})
	if wanted || !a.Call.Republish && (!a.Call.Recorded || !a.Call.confirmed(Publish, left[0])) {
		v.call(a, Unpublish, left[0])
	}
}

// call sends a call, unless no request can be made, the same one failed too
// short a time ago, or the volume has one in flight.
func (v *volume) call(a Attachment, verb Verb, nodeID string) {
	recordAs := Publish
	if a.Deleting {
		recordAs = Unpublish
	}
	if verb == Unpublish && a.UnpublishProblem != "" {
		v.report(a, recordAs, a.UnpublishProblem)
		v.wait(a, RequestImpossible, time.Time{})
		return
	}
	if until := v.backOff(a, verb, nodeID); until.After(v.now) {
		v.reportCall(a, recordAs)
		v.wait(a, BackingOff, until)
		return
	}
	switch {
	case v.draining:
		v.reportCall(a, recordAs)
		v.wait(a, ShuttingDown, time.Time{})
	case v.calling && !planted.S4:
		v.wait(a, CallInFlight, time.Time{})
	default:
		v.calling = true
		v.do(CallDriver{target: target{a.UID}, Verb: verb, NodeID: nodeID})
	}
}

// blockedBy finds the attachment that a wanted one has to wait for: every other
// one of an exclusive volume, except one that has not begun and comes later.
func (v *volume) blockedBy(a Attachment) (Attachment, bool) {
	if !v.exclusive {
		return Attachment{}, false
	}
	for _, other := range v.attachments {
		if other.UID == a.UID {
			continue
		}
		if v.mustWaitFor(a, other) {
			return other, true
		}
	}
	return Attachment{}, false
}

// mustWaitFor tells whether a has to wait for other.
func (v *volume) mustWaitFor(a, other Attachment) bool {
	if other.Gone && !slices.ContainsFunc(other.Call.publishedTo(), func(id string) bool { return id != a.boundNodeID() }) {
		return false // the same node under a new object
	}
	if planted.S1Attacher && !other.Attached {
		return false
	}
	if other.mayBePublished() || other.Deleting {
		return true
	}
	if other.Gone {
		return false
	}
	// The other one has not begun, or what it began was taken back.
	return olderFirst(other, a) < 0 && !a.mayBePublished()
}

// waitForHolder waits, says so, and, if both may be published and neither was
// ever reported as attached (only another attacher can have left that), asks the
// driver to take the later one back: or each would wait for the other for ever.
func (v *volume) waitForHolder(a, other Attachment) {
	deadlock := a.mayBePublished() && !a.Attached &&
		!other.Attached && !other.Deleting && !other.Gone && other.mayBePublished()
	if deadlock && olderFirst(other, a) < 0 {
		v.call(a, Unpublish, a.publishedTo()[0])
		return
	}
	if a.Attached {
		// Recorded as attached, and to be published again: nothing went wrong yet.
		v.wait(a, OtherWriterAttached, time.Time{})
		return
	}
	if a.AttachError == "" || !other.Gone || other.failedToDetach() { // else a message is there, and the driver may confirm the detach at once
		v.report(a, Publish, other.blockedMessage())
	}
	v.wait(a, OtherWriterAttached, time.Time{})
}

func (a Attachment) failedToDetach() bool { return a.Call.Verb == Unpublish && a.Call.failed() }

// blockedMessage is the message for an attachment that waits for this one.
func (a Attachment) blockedMessage() string {
	if !a.Gone {
		return fmt.Sprintf("volume may be attached to one node only and VolumeAttachment %s for node %q still exists", a.Name, a.Node)
	}
	progress := "under way"
	if a.failedToDetach() {
		progress = fmt.Sprintf("retried (last error: %s)", truncate(a.Call.Message, maxQuotedError))
	}
	return fmt.Sprintf("volume can be attached to only one node: VolumeAttachment %s for node %q was removed before the driver confirmed the detach, which is %s. "+
		"If that node is known not to write to the volume, restart the attacher to stop waiting", a.Name, a.Node, progress)
}

// report records a standing obstacle, once.
func (v *volume) report(a Attachment, verb Verb, message string) {
	if a.Gone {
		return
	}
	stored := a.AttachError
	if verb == Unpublish {
		stored = a.DetachError
	}
	if message = Truncate(message); message == stored {
		return
	}
	v.do(RecordError{target: target{a.UID}, Verb: verb, Message: message})
}

// reportCall records the error of the last call, once per call: the time of a
// repeated failure is news. What the driver says is stored as it is; where it said
// nothing, the message has to say what comes next.
func (v *volume) reportCall(a Attachment, verb Verb) {
	if a.Gone || !a.Call.failed() || a.Call.Recorded {
		return
	}
	message := a.Call.Message
	if next := v.backOff(a, a.Call.Verb, a.Call.NodeID); a.Call.Unanswered && next.After(v.now) {
		message += "; next attempt at " + FormatTime(next)
	}
	v.do(RecordError{target: target{a.UID}, Verb: verb, Message: Truncate(message), OfCall: true})
}

func (v *volume) do(step Step) { v.decision.Steps = append(v.decision.Steps, step) }

func (v *volume) wait(a Attachment, reason Reason, until time.Time) {
	v.decision.Wait(Wait{Attachment: a.Name, Reason: reason, Until: until})
}
