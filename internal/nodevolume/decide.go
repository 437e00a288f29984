package nodevolume

import (
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/planted"
)

// Decide says what to do next for one volume on this node. The rules about
// safety are here and in [InUseList], nowhere else:
//
//   - S7: StageVolume, and Publish of a driver that does not stage, come only
//     when the newest known Node lists the volume in use and as attached. One
//     object that holds both proves that the controller has not begun to detach,
//     or will find the volume in use when it withdraws its report.
//   - The volume is taken out of the list only when no record of it is left.
//   - What may be mounted without a record is in the way of the unstage, and keeps
//     the volume listed.
//   - The last call that takes a volume from the machine comes only when nothing else there has it
//     mounted: a container's mounts outlive the paths that they were made from.
//   - The way back (Unpublish, Unstage) waits for nothing in the API.
//   - An inline volume is published and unpublished, and that is all.
//   - Nothing is mounted with two SELinux labels at once (see label.go).
//   - What is Unknown is waited for.
func Decide(now time.Time, desired Desired, observed Observed) Decision {
	c := decider{now: now, desired: desired, observed: observed}
	c.listInUse()
	c.out.Next = c.unmountUnwanted()
	if c.out.Next == nil {
		c.out.Next = c.mountNext()
	}
	if c.out.Next == nil {
		c.out.Next = c.expand()
	}
	if c.out.Next == nil {
		c.out.Next = c.renew()
	}
	return c.out
}

type decider struct {
	now      time.Time
	desired  Desired
	observed Observed
	out      Decision
}

// listInUse says what the Node's in-use list shall say, from wants and records.
func (c *decider) listInUse() {
	switch {
	case c.observed.Inline:
		// Whoever lists such a name means something else by it.
		c.out.Forget = !c.recorded() && len(c.desired.Pods) == 0
	case c.mustBeInUse():
		c.out.InUse = Yes
	case c.recorded() || c.wanted():
		// A CSIDriver that came late or was made anew may say that nothing is attached: then
		// the attachment can go while the pod runs. As long as nothing is known, the list stays.
		if c.observed.AttachRequired == No {
			c.out.InUse = No
		}
	case c.observed.Node.InUse == No:
		if c.out.Forget = len(c.desired.Pods) == 0; !c.out.Forget {
			c.out.InUse = No // the pods that are left want nothing now, and may again
		}
	default:
		c.out.InUse = No
		c.wait(PublishKey{}, InUseNotCleared)
	}
}

// mustBeInUse: a pod wants the volume attached, or a record says that it may be staged.
func (c *decider) mustBeInUse() bool {
	recorded := c.recorded()
	if recorded && (c.observed.RecordedInUse || c.observed.Unaccounted || c.observed.AttachRequired == Yes) {
		return true
	}
	return c.wanted() && c.observed.AttachRequired == Yes
}

func (c *decider) recorded() bool {
	return c.observed.Stage.Phase != Absent || c.observed.Unaccounted || c.anyPod(func(p Pod) bool { return p.Publish != Absent })
}

func (c *decider) wanted() bool {
	return c.anyPod(func(p Pod) bool { return p.Demand == Wanted })
}

func (c *decider) anyPod(is func(Pod) bool) bool {
	return slices.ContainsFunc(c.desired.Pods, is)
}

// unmountUnwanted undoes what no pod wants, publishes first.
func (c *decider) unmountUnwanted() Step {
	for _, p := range c.desired.Pods {
		switch p.Demand {
		case DemandUnknown:
			c.wait(p.Key, OwnerSilent)
		case Ending:
			c.wait(p.Key, ContainersMayRun)
		case Released:
			if p.Publish == Absent || !c.mayCall(p.Key, p.Failure) {
				continue
			}
			if step := c.unpublish(p); step != nil {
				return step
			}
		case Wanted:
		}
	}
	switch {
	case c.anyPod(c.needsStage):
		return nil
	case c.observed.Unaccounted:
		c.wait(PublishKey{}, UnaccountedMount)
		return nil
	case c.observed.Stage.Phase != Absent && c.mayCall(PublishKey{}, c.observed.Unstage):
		return c.undo(PublishKey{}, Unstage{}, true)
	default:
		return nil
	}
}

// isLastPublish: no other publish is known to stand of a volume that may be detached when it leaves the list.
// Of what is not attached nothing is taken from under a container's mount.
func (c *decider) isLastPublish(p Pod) bool {
	return !c.observed.Inline && (c.observed.RecordedInUse || c.observed.Unaccounted || c.observed.AttachRequired != No) &&
		!c.anyPod(func(other Pod) bool { return other.Key != p.Key && other.Publish == Confirmed })
}

// undo is the call that undoes a stage or publish. If that may take the volume from the machine, it comes
// only after somebody looked, in this turn, and found that nothing else has it.
func (c *decider) undo(key PublishKey, call Step, looks bool) Step {
	if !looks || c.observed.Users.Found == No {
		return call
	}
	if until := c.observed.Users.Search.retryAt(); c.now.Before(until) {
		c.wait(key, StillMountedElsewhere)
		c.recheck(until)
		return nil
	}
	return LookForUsers{Key: key}
}

// unpublish takes a publish back.
func (c *decider) unpublish(p Pod) Step {
	return c.undo(p.Key, Unpublish{Key: p.Key}, c.isLastPublish(p))
}

// mountNext leads the first pod on for which something can be done.
func (c *decider) mountNext() Step {
	for _, p := range c.desired.Pods {
		if p.Demand != Wanted || p.Publish == Confirmed {
			continue
		}
		if c.mayBePublishedWithOtherLabel(p) {
			if c.mayCall(p.Key, p.Failure) {
				if step := c.unpublish(p); step != nil {
					return step
				}
			}
			continue
		}
		if reason := c.gate(p); reason != "" {
			c.wait(p.Key, reason)
			continue
		}
		if step := c.mount(p); step != nil {
			return step
		}
	}
	return nil
}

// renew repeats a publish that stands, for a driver that wants to be called again
// from time to time. It passes the same gates as the first one: a volume that the
// controller may have detached since is not given to the driver once more.
func (c *decider) renew() Step {
	every := c.observed.Driver.RepublishEvery
	if every == 0 {
		return nil
	}
	for _, p := range c.desired.Pods {
		if p.Demand != Wanted || p.Publish != Confirmed || p.Leaving {
			continue
		}
		if due := p.LastConfirmed.renewAt(every); c.now.Before(due) {
			c.recheck(due)
			continue
		}
		if reason := c.gate(p); reason != "" {
			c.wait(p.Key, reason)
			continue
		}
		if step := c.mount(p); step != nil {
			return step
		}
	}
	return nil
}

// gate is what a pod must wait for before anything is read or called for it.
func (c *decider) gate(p Pod) Reason {
	o := c.observed
	switch c.attachRequired() {
	case Unknown:
		return AttachabilityUnknown
	case Yes:
		switch {
		case o.Node.InUse == Unknown && o.Node.Attached == Unknown:
			return NodeUnknown
		case o.Node.InUse == No, o.Node.InUse == Unknown && !planted.S7:
			return NotReportedInUse
		case o.Node.Attached != Yes:
			return NotAttached
		}
	case No:
	}
	if reason := c.labelGate(p); reason != "" {
		return reason
	}
	return c.solePodGate(p)
}

// solePodGate: no other pod may have a ReadWriteOncePod volume. Another PersistentVolume with its handle is the same volume.
func (c *decider) solePodGate(p Pod) Reason {
	switch {
	case c.anyPod(func(other Pod) bool {
		return other.Key.PodUID != p.Key.PodUID && other.Publish != Absent && (p.SolePod || other.SolePod)
	}):
		return OtherPodMounted
	case c.observed.Unaccounted && p.Publish != Confirmed && (p.SolePod || p.label() != ""):
		return UnaccountedMount // for another pod, or with another label
	default:
		return ""
	}
}

// attachRequired: an inline volume needs no attach, but whether its driver has such
// volumes is known no sooner than whether it attaches others.
func (c *decider) attachRequired() Knowledge {
	if c.observed.Inline && c.observed.AttachRequired == Yes {
		return No
	}
	return c.observed.AttachRequired
}

// mount is the next step for a pod whose gate is open.
func (c *decider) mount(p Pod) Step {
	o := c.observed
	if !c.mayCall(p.Key, p.Failure) {
		return nil
	}
	if o.Driver.Stages == Unknown {
		return ReadCapabilities{For: p.Key}
	}
	if c.attachRequired() == Yes {
		switch o.Attachment.Attached {
		case Unknown:
			return ReadAttachment{For: p.Key}
		case No:
			c.wait(p.Key, AttachmentNotReady)
			return nil
		case Yes:
		}
		if o.Stage.Phase != Absent && o.Stage.AttachmentUID != "" && o.Stage.AttachmentUID != o.Attachment.UID {
			return c.restage(p)
		}
	}
	if o.Driver.Stages == Yes && !o.Inline && o.Stage.Phase != Confirmed {
		return StageVolume{For: p.Key, Label: p.label()}
	}
	if p.Publish == Confirmed {
		return Republish{Key: p.Key}
	}
	return Publish{Key: p.Key, Label: p.label()}
}

// restage undoes a stage that belongs to an attachment which is no more. Pods
// that run on it keep it: taking a mount away under a process helps nobody.
func (c *decider) restage(p Pod) Step {
	for _, other := range c.desired.Pods {
		mayRun := other.Demand == DemandUnknown || other.Demand == Ending || other.Demand == Wanted && other.Inherited
		if other.Publish == Confirmed || mayRun && other.Publish != Absent {
			c.wait(p.Key, AttachmentReplaced)
			return nil
		}
	}
	for _, other := range c.desired.Pods {
		if other.Publish == Absent {
			continue
		}
		if c.mayCall(other.Key, other.Failure) {
			if step := c.unpublish(other); step != nil {
				return step
			}
		}
		c.wait(p.Key, AttachmentReplaced)
		return nil
	}
	if c.observed.Unaccounted {
		c.wait(p.Key, UnaccountedMount)
		return nil
	}
	if c.mayCall(PublishKey{}, c.observed.Unstage) {
		if step := c.undo(PublishKey{}, Unstage{}, true); step != nil {
			return step
		}
	}
	c.wait(p.Key, AttachmentReplaced)
	return nil
}

// mayCall holds back calls without a driver and calls that failed a moment ago.
func (c *decider) mayCall(key PublishKey, failure Failure) bool {
	if !c.observed.Driver.Registered {
		c.wait(key, DriverNotRegistered)
		return false
	}
	if until := failure.retryAt(); c.now.Before(until) {
		c.wait(key, BackingOff)
		c.recheck(until)
		return false
	}
	return true
}

// recheck has the volume looked at again at the earliest of the times given.
func (c *decider) recheck(at time.Time) {
	c.out.RecheckAt = decision.Earlier(c.out.RecheckAt, at)
}

func (c *decider) wait(key PublishKey, reason Reason) {
	c.out.Waits = append(c.out.Waits, Wait{Key: key, Reason: reason})
}

// Back-off as kubelet has it, but for each pod on its own, stretched by jitter,
// and cut short by whatever the work waits for.
const (
	firstBackOff = 500 * time.Millisecond
	maxBackOff   = 2*time.Minute + 2*time.Second
)

func (f Failure) retryAt() time.Time {
	if f.Count == 0 || f.At.IsZero() {
		return time.Time{}
	}
	wait := maxBackOff
	if f.Count < 9 { // 500 ms doubled eight times is beyond the longest wait
		wait = min(firstBackOff<<(f.Count-1), maxBackOff)
	}
	if f.AtMost > 0 {
		wait = min(wait, f.AtMost)
	}
	return f.At.Add(wait + time.Duration(f.Jitter*float64(wait)/10))
}

// renewAt is when the publish is due again: at once if nobody knows when it was made.
func (c Confirmation) renewAt(every time.Duration) time.Time {
	if c.At.IsZero() {
		return time.Time{}
	}
	return c.At.Add(every + time.Duration(c.Jitter*float64(every)/2))
}

// Reply is what a driver's answer says about the call.
type Reply int

// The replies. The zero value is the careful one.
const (
	// NoAnswer: lost, timed out, or a code that says nothing about what was done
	// (Canceled, DeadlineExceeded, Unavailable, ResourceExhausted, Aborted).
	NoAnswer Reply = iota
	// Refused: the driver says that it did not do it.
	Refused
	// OK: the driver says that it did.
	OK
)

// AfterCall is the phase of a stage or publish after the driver's reply to the
// call that makes it. A refusal makes it Absent only if it was Absent before: an
// earlier call without an answer, by this agent or one that died, may have done it, and
// a refusal now says nothing about then. (Kubelet believes the refusal.) What was
// Confirmed stays so: the call was to renew it, and a pod runs on it (k/k#121271).
func AfterCall(before Phase, reply Reply) Phase {
	switch {
	case reply == OK || before == Confirmed:
		return Confirmed
	case reply == Refused && before == Absent:
		return Absent
	default:
		return Uncertain
	}
}

// AfterUndo is the phase after the reply to the call that undoes a stage or publish.
func AfterUndo(reply Reply) Phase {
	if reply == OK {
		return Absent
	}
	return Uncertain
}
