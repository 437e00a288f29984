package publication

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/planted"
)

// Decide returns what to do next for one key.
//
// It guarantees: an exclusive volume is published for an attachment only while no other one exists or may be published (S1), with
// at most one call in flight (S4); the finalizer is removed only after the driver confirmed the unpublish of the node ID recorded
// at attach, or a person declared that machine gone (S5); no call is sent before the finalizer is stored on that attachment (S10).
func Decide(now time.Time, seen Observed, policy Policy) Decision {
	v := volume{now: now, policy: policy, exclusive: seen.Exclusive, draining: seen.Draining}
	v.attachments = slices.Clone(seen.Attachments)
	slices.SortFunc(v.attachments, olderFirst)
	for _, a := range v.attachments {
		v.calling = v.calling || a.Call.InFlight
	}
	for _, a := range v.attachments {
		if !a.Beside {
			v.decide(a)
		}
	}
	return v.decision
}

// decide adds the step for one attachment, or why it waits.
func (v *volume) decide(a Attachment) {
	switch {
	case a.endsPublish() && !planted.S4:
		// The deletion ends the wait for it: the unpublish follows as after one that was not answered.
		v.do(CancelCall{target{a.UID}})
		v.wait(a, CallInFlight, time.Time{})
	case a.Call.InFlight && (!planted.S4 || !a.Deleting):
		v.wait(a, CallInFlight, time.Time{})
	case a.Gone:
		v.cleanUp(a)
	case a.UnconfirmedWrite:
		// The watch may still show an earlier state, in which a node ID that has changed back equals the recorded one.
		v.do(Reread{target{a.UID}})
	case a.mayBeAnothers():
		v.holdRestored(a)
	case a.Deleting:
		v.detach(a)
	case !a.Attached, a.unrecorded(), a.Drift == NotPublished && a.nodeUnchanged():
		v.attach(a)
	default:
		v.keepFinalizers(a)
	}
}

// endsPublish reports whether the attachment ended while a publish for it is in flight that was not cancelled yet.
func (a Attachment) endsPublish() bool {
	return (a.Deleting || a.Gone) && a.Call.InFlight && a.Call.Verb == Publish && !a.Call.Cancelled
}

// mayBeAnothers reports whether the attachment may be another cluster's, and no person has declared its machine gone.
func (a Attachment) mayBeAnothers() bool {
	return a.Restored != "" && (!a.Deleting || a.DeclaredGone != a.RecordedNodeID)
}

// holdRestored leaves an attachment alone that may be another cluster's. Only a person's declaration ends it.
func (v *volume) holdRestored(a Attachment) {
	switch {
	case !a.Deleting:
		v.report(a, Publish, a.Restored)
	case a.Finalizer:
		v.report(a, Unpublish, a.Restored)
	}
	v.wait(a, RestoredAttachment, time.Time{})
}

// volume is a decision in progress.
type volume struct {
	now         time.Time
	policy      Policy
	exclusive   bool
	draining    bool
	calling     bool // a call is in flight, or decided on
	attachments []Attachment
	decision    Decision
}

// olderFirst gives every process the same order, so that of two attachments that both wait to begin one goes first.
func olderFirst(a, b Attachment) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// unrecorded reports whether the driver confirmed a publish whose result is not in the status. Attached says nothing about it: that may be
// of an earlier publish, with another publish context.
func (a Attachment) unrecorded() bool {
	return a.Finalizer && a.Call.confirmed(Publish, a.RecordedNodeID) && !a.Call.Recorded
}

// attach handles a wanted attachment that has to be published, or whose publish has to be recorded.
func (v *volume) attach(a Attachment) {
	if a.unrecorded() {
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
	if first, waits := v.left(a, v.staleNodeIDs(a)); waits && a.Drift != Abandoned && a.Drift != HalfPublished {
		v.waitForPlace(a)
		return
	} else if len(first) > 0 {
		v.unpublish(a, first)
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
		Attachment: !a.Finalizer || a.VolumeUnrecorded || a.RecordedNodeID != a.NodeID}
	if write.needed() {
		if v.draining {
			v.wait(a, ShuttingDown, time.Time{})
			return
		}
		v.do(write)
		return
	}
	if nodeID := v.leftBehind(a); nodeID != "" {
		v.unpublishAgain(a, nodeID)
		return
	}
	v.call(a, Publish, a.boundNodeID())
}

// unpublishAgain repeats a confirmed unpublish. Nodes are asked right before the call: an answer would be too old after a wait.
func (v *volume) unpublishAgain(a Attachment, nodeID string) {
	sends := !v.draining && !v.calling && a.UnpublishProblem == "" && !v.backOff(a, Unpublish, nodeID).After(v.now)
	if sends && v.now.Sub(a.Asked[nodeID].At) > askedFor {
		v.do(AskNodes{target{a.UID}, nodeID})
		return
	}
	v.call(a, Unpublish, nodeID)
}

// askedFor is how long an answer of Nodes may be used.
const askedFor = 5 * time.Second

// leftBehind returns a node ID at which the volume may be although the driver confirmed the unpublish, so that it refuses to publish it
// elsewhere: the unpublish is repeated, once before each attempt to publish. Drivers answer OK too early, for instance while their storage
// does not show the instance. No attachment is for that ID, and no Node with it lists the volume in use: nothing is taken from anyone. Why
// the driver refuses is not read from its text, which differs by driver and version: the repetition changes nothing for another cause.
func (v *volume) leftBehind(a Attachment) (nodeID string) {
	bound := a.boundNodeID()
	if last := a.Call.at(bound); !v.exclusive || last.Verb != Publish || !last.failed() || !last.Refused {
		return ""
	}
	for _, id := range a.UnpublishedFrom {
		answer, asked := a.Asked[id]
		inUse := asked && answer.InUse != decision.No && v.now.Sub(answer.At) <= askedFor
		held := slices.ContainsFunc(v.attachments, func(other Attachment) bool {
			return other.boundNodeID() == id || other.NodeID == id || slices.Contains(other.publishedTo(), id)
		})
		if !inUse && !held && !a.Call.calledSince(id, bound) {
			return id
		}
	}
	return ""
}

// staleNodeIDs are the node IDs from which the volume must be unpublished before it can be published for the attachment.
func (v *volume) staleNodeIDs(a Attachment) []string {
	stale := a.Finalizer && !a.Untouched && a.RecordedNodeID != "" && a.RecordedNodeID != a.NodeID
	switch {
	case a.Drift == Abandoned, a.Drift == HalfPublished:
		return []string{a.DriftNodeID}
	case !stale || a.unpublishedFrom(a.RecordedNodeID):
		return nil
	case a.SameMachine == a.NodeID && a.Call.unknownAt(a.RecordedNodeID):
		return append(a.publishedTo(), v.currentNodeIDs(a)...)
	}
	// The node got another node ID before the attach was recorded. Overwriting the recorded one would lose what the driver may
	// have published.
	return []string{a.RecordedNodeID}
}

// withdrawalLimit is how long an attachment is not published after the controller announced its deletion. The deletion follows
// within a second or two, unless the node still uses the volume. An older request may be a leftover of a controller that no longer
// runs.
const withdrawalLimit = time.Minute

// withdrawnUntil is when an attachment whose deletion was announced may be published after all: the unpublish would have to wait
// for a publish that hangs.
func (v *volume) withdrawnUntil(a Attachment) time.Time {
	// A request in the future, from a clock that is ahead, could block the publish until then.
	if a.Attached || a.DetachRequested.IsZero() || a.DetachRequested.After(v.now.Add(withdrawalLimit)) {
		return time.Time{}
	}
	return a.DetachRequested.Add(withdrawalLimit)
}

// keepFinalizers stores the finalizers again: on an attached VolumeAttachment if another client removed it, because the detach
// would be lost with the object; and on a PersistentVolume that did not exist, or was unknown, while another one with the same
// handle was used instead.
func (v *volume) keepFinalizers(a Attachment) {
	nodeID := a.boundNodeID()
	if v.draining || nodeID == "" || a.Finalizer && !a.VolumeUnprotected {
		return
	}
	v.do(WriteFinalizers{target: target{a.UID}, NodeID: nodeID, Attachment: !a.Finalizer, Volume: a.VolumeUnprotected})
}

// confirmAfter is how long a detach may take before its success is recorded in the status, by a separate request. Without it, a
// watcher could not distinguish a slow detach from a finalizer that another client removed because the detach was slow.
const confirmAfter = 5 * time.Second

// detach handles an attachment that is being deleted. Without the finalizer there is nothing to do: the volume was never published
// for it, or the unpublish was confirmed.
func (v *volume) detach(a Attachment) {
	if !a.Finalizer {
		v.unpublishStale(a)
		return
	}
	if a.Untouched {
		v.do(RemoveFinalizer{target{a.UID}})
		return
	}
	left, waits := v.left(a, slices.DeleteFunc(append(a.publishedTo(), v.currentNodeIDs(a)...), func(id string) bool {
		return a.DeclaredGone != "" && id == a.DeclaredGone
	}))
	if waits {
		v.waitForPlace(a)
		return
	}
	if len(left) == 0 || a.Drift == Vanished || planted.S5 && a.unpublished() {
		late := a.DetachError != "" || v.now.Sub(a.DeletedAt) > confirmAfter
		if (a.OtherFinalizers || late) && (a.Attached || a.DetachError != "") {
			// The object stays for other finalizers, or its detach was slow: if it ended as attached, that would mean that another
			// client removed the finalizer (see confirmAfter). The status is written first: after a crash in between, the unpublish
			// is repeated and not lost.
			v.do(RecordDetached{target{a.UID}})
			return
		}
		v.do(RemoveFinalizer{target{a.UID}})
		return
	}
	v.unpublish(a, left)
}

// currentNodeIDs are the present ID of the attachment's node, and the one that the controller recorded for the same machine, if
// another one is recorded for the attachment and the volume was not unpublished from these yet: the record may be wrong, and the driver
// may know the machine by these only. Another attachment may still need the volume there.
func (v *volume) currentNodeIDs(a Attachment) (ids []string) {
	for _, id := range []string{a.NodeID, a.sameMachine()} {
		known := a.RecordedNodeID == "" || id == "" || id == a.RecordedNodeID || a.Call.called(id) || a.Call.unpublishedFrom(id) || slices.Contains(ids, id)
		if !known && !v.neededAt(a, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unpublishStale unpublishes what the driver still lists for a released attachment, unless another one may need the volume at that
// node. Only an error, and the end of it, are recorded.
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

// cleanUp unpublishes what was published for an attachment that is gone. If the object vanished without a detach, a volume that was
// recorded as attached is unpublished only when another attachment wants it: objects vanish by the hundred when a cluster is
// restored from a backup, and the pods still run. A publish that was repeated makes no difference.
func (v *volume) cleanUp(a Attachment) {
	left, waits := v.left(a, a.Call.publishedTo())
	switch {
	case a.takenOver():
		v.do(Forget{target{a.UID}})
		return
	case waits:
		v.waitForPlace(a)
		return
	case len(left) == 0, planted.S5 && a.unpublished():
		v.do(Forget{target{a.UID}})
		return
	}
	wanted := slices.ContainsFunc(v.attachments, func(other Attachment) bool {
		return !other.Gone && !other.Deleting && other.boundNodeID() != left[0]
	})
	if wanted || !a.Call.Republish && (!a.Call.Recorded || !a.Call.confirmed(Publish, left[0])) {
		v.unpublish(a, left)
	}
}

// unpublish works off the places that are left: next is the one that is due first, so that none keeps another from being tried.
func (v *volume) unpublish(a Attachment, left []string) {
	next := slices.MinFunc(left, func(x, y string) int { return v.backOff(a, Unpublish, x).Compare(v.backOff(a, Unpublish, y)) })
	if planted.Places {
		next = left[0]
	}
	if a.Call.Verb == Unpublish && a.Call.NodeID != next && v.reportCall(a, a.errorOf()) {
		return // first, because the next call takes the place of this one
	}
	v.call(a, Unpublish, next)
}

// errorOf is the call of which the status has the error while the attachment is worked on.
func (a Attachment) errorOf() Verb {
	if a.Deleting {
		return Unpublish
	}
	return Publish
}

// call sends a call, unless no request can be made, the same call backs off, or the volume has a call in flight.
func (v *volume) call(a Attachment, verb Verb, nodeID string) {
	recordAs := a.errorOf()
	if verb == Unpublish && a.UnpublishProblem != "" {
		v.report(a, recordAs, a.UnpublishProblem)
		v.wait(a, RequestImpossible, time.Time{})
		return
	}
	if until := v.backOff(a, verb, nodeID); until.After(v.now) {
		if _, inDoubt := a.inDoubt(verb, nodeID); inDoubt {
			v.report(a, recordAs, inDoubtMessage(until))
			v.wait(a, PublishInDoubt, until)
			return
		}
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

// blockedBy returns the attachment that a wanted one must wait for: any other one of an exclusive volume, except one that has not
// begun and is younger.
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

// mustWaitFor reports whether a must wait for other.
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
	// The other one has not begun, or what it began was undone.
	return olderFirst(other, a) < 0 && !a.mayBePublished()
}

// waitForHolder waits and records the reason. If both may be published and neither was ever reported as attached (which only
// another attacher can cause), the younger one is unpublished, or each would wait for the other forever.
func (v *volume) waitForHolder(a, other Attachment) {
	deadlock := a.mayBePublished() && !a.Attached &&
		!other.Attached && !other.Deleting && !other.Gone && other.mayBePublished() && !other.unrecorded()
	if deadlock && olderFirst(other, a) < 0 {
		// Of one place, the older one is published again. Only one that is attached needs it now.
		left := slices.DeleteFunc(a.publishedTo(), func(id string) bool {
			return slices.ContainsFunc(v.attachments, func(holder Attachment) bool { return holder.Attached && v.needs(holder, a, id) })
		})
		if len(left) > 0 {
			v.unpublish(a, left)
			return
		}
	}
	if a.Attached {
		// It is recorded as attached and published again: there is no error to record.
		v.wait(a, OtherWriterAttached, time.Time{})
		return
	}
	if a.AttachError == "" || !other.Gone || other.failedToDetach() { // else there is a message already, and the driver may confirm the detach soon
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
		progress = fmt.Sprintf("retried (last error: %s)", decision.Truncate(a.Call.Message, maxQuotedError))
	}
	return fmt.Sprintf("volume can be attached to only one node: VolumeAttachment %s for node %q was removed before the driver confirmed the detach, which is %s. "+
		"If that node is known not to write to the volume, restart the attacher to stop waiting", a.Name, a.Node, progress)
}

// report records an obstacle once.
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

// reportCall records the error of the last call, once per call, because the time of a repeated failure is new. The driver's message
// is stored as it is; if the driver gave no answer, the message has to tell when the next attempt is.
func (v *volume) reportCall(a Attachment, verb Verb) (reported bool) {
	if a.Gone || !a.Call.failed() || a.Call.Recorded {
		return false
	}
	message := a.Call.Message
	if next := v.backOff(a, a.Call.Verb, a.Call.NodeID); a.Call.Unanswered && next.After(v.now) {
		message += "; next attempt at " + FormatTime(next)
	}
	if a.Held != "" && verb == Publish {
		message = decision.Truncate(message, maxQuotedError) + "; " + a.Held
	}
	v.do(RecordError{target: target{a.UID}, Verb: verb, Message: Truncate(message), OfCall: true})
	return true
}

func (v *volume) do(step Step) { v.decision.Steps = append(v.decision.Steps, step) }

func (v *volume) wait(a Attachment, reason Reason, until time.Time) {
	v.decision.Wait(Wait{Attachment: a.Name, Reason: reason, Until: until})
}
