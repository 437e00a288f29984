package nodevolume

import (
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/planted"
)

// Decide returns the next step for one volume on this node. The rules about safety are here and in [InUseList], nowhere else:
//
//   - S7: StageVolume, and Publish for a driver that does not stage, require that the newest known Node lists the volume both in
//     use and as attached. One object that has both proves that the controller has not begun to detach, or will find the volume in
//     use when it withdraws its report.
//   - The volume leaves the list only when no record of it is left.
//   - A mount that may exist without a record blocks the unstage and keeps the volume listed.
//   - The last call that takes a volume from the machine requires that nothing else there has it mounted: the mounts of a container
//     outlive the paths that they were made from.
//   - Unpublish and Unstage wait for nothing in the API.
//   - An inline volume is only published and unpublished.
//   - Nothing is mounted with two SELinux labels at once (see label.go).
//   - Unknown means wait.
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

// listInUse decides whether the Node should list the volume in use.
func (c *decider) listInUse() {
	switch {
	case c.observed.Inline:
		// A name like this in the list is not the volume.
		c.out.Forget = !c.recorded() && len(c.desired.Pods) == 0
	case c.mustBeInUse():
		c.out.InUse = Yes
	case c.recorded() || c.wanted():
		// A CSIDriver that was created late or recreated may say that no attach is required: then the attachment can go while the
		// pod runs. As long as that is unknown, the list stays.
		if c.observed.AttachRequired == No {
			c.out.InUse = No
		}
	case c.observed.Node.InUse == No:
		if c.out.Forget = len(c.desired.Pods) == 0; !c.out.Forget {
			c.out.InUse = No // the remaining pods want nothing now, but may do so later
		}
	default:
		c.out.InUse = No
		c.wait(PublishKey{}, InUseNotCleared)
	}
}

// mustBeInUse: a pod wants the volume attached, or according to a record it may be staged.
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

// unmountUnwanted unmounts what no pod wants, publishes first.
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

// isLastPublish: no other publish of the volume is confirmed, and the volume may be detached once it leaves the list. A volume that
// is not attached is not taken from under a container's mount either.
func (c *decider) isLastPublish(p Pod) bool {
	return !c.observed.Inline && (c.observed.RecordedInUse || c.observed.Unaccounted || c.observed.AttachRequired != No) &&
		!c.anyPod(func(other Pod) bool { return other.Key != p.Key && other.Publish == Confirmed })
}

// undo returns the call that undoes a stage or publish. If the call may take the volume from the machine, a search in this turn
// must have found no other user.
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

func (c *decider) unpublish(p Pod) Step {
	return c.undo(p.Key, Unpublish{Key: p.Key}, c.isLastPublish(p))
}

// mountNext returns the next step for the first pod that can make progress.
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

// renew repeats a confirmed publish for a driver that asks for it. The gates of the first publish apply: the controller may have
// detached the volume since.
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

// gate returns the reason why a pod must wait before anything is read or called for it, empty if it need not.
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

// solePodGate: a ReadWriteOncePod volume must not be published for another pod. Another PersistentVolume with its handle is the
// same volume.
func (c *decider) solePodGate(p Pod) Reason {
	switch {
	case c.anyPod(func(other Pod) bool {
		return other.Key.PodUID != p.Key.PodUID && other.Publish != Absent && (p.SolePod || other.SolePod)
	}):
		return OtherPodMounted
	case c.observed.Unaccounted && p.Publish != Confirmed && (p.SolePod || p.label() != ""):
		return UnaccountedMount // possibly for another pod, or with another label
	default:
		return ""
	}
}

// attachRequired: an inline volume needs no attach, but until the CSIDrivers have been listed it is unknown whether the driver
// supports inline volumes.
func (c *decider) attachRequired() Knowledge {
	if c.observed.Inline && c.observed.AttachRequired == Yes {
		return No
	}
	return c.observed.AttachRequired
}

// mount returns the next step for a pod that passed the gate.
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

// restage undoes a stage that belongs to an attachment that no longer exists. Pods that run on it keep it: taking a mount from
// under a process helps nothing.
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

// mayCall delays calls while the driver is not registered or backs off after a failure.
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

func (c *decider) recheck(at time.Time) {
	c.out.RecheckAt = decision.Earlier(c.out.RecheckAt, at)
}

func (c *decider) wait(key PublishKey, reason Reason) {
	c.out.Waits = append(c.out.Waits, Wait{Key: key, Reason: reason})
}

// The back-off is kubelet's, but for each pod, with jitter, and it ends when something changes that the work may be waiting for.
const (
	firstBackOff = 500 * time.Millisecond
	maxBackOff   = 2*time.Minute + 2*time.Second
)

func (f Failure) retryAt() time.Time {
	if f.Count == 0 || f.At.IsZero() {
		return time.Time{}
	}
	wait := maxBackOff
	if f.Count < 9 { // 500 ms doubled eight times exceeds the maximum
		wait = min(firstBackOff<<(f.Count-1), maxBackOff)
	}
	if f.AtMost > 0 {
		wait = min(wait, f.AtMost)
	}
	return f.At.Add(wait + time.Duration(f.Jitter*float64(wait)/10))
}

// renewAt is when the publish is due again; immediately if the time of the last one is unknown.
func (c Confirmation) renewAt(every time.Duration) time.Time {
	if c.At.IsZero() {
		return time.Time{}
	}
	return c.At.Add(every + time.Duration(c.Jitter*float64(every)/2))
}

// Reply is the result of a call according to the driver's answer.
type Reply int

// The zero value is the cautious one.
const (
	// NoAnswer: lost, timed out, or a code that does not show what was done (Canceled, DeadlineExceeded, Unavailable,
	// ResourceExhausted, Aborted).
	NoAnswer Reply = iota
	// Refused: the driver has not done it.
	Refused
	// OK: the driver has done it.
	OK
)

// AfterCall is the phase of a stage or publish after the reply to the call that creates it. A refusal makes it Absent only if it
// was Absent before: an earlier unanswered call, by this agent or one that crashed, may have succeeded. (Kubelet trusts the
// refusal.) Confirmed stays Confirmed: the call was a renewal, and a pod runs on the mount (k/k#121271).
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

// AfterUndo is the phase of a stage or publish after the reply to the call that undoes it.
func AfterUndo(reply Reply) Phase {
	if reply == OK {
		return Absent
	}
	return Uncertain
}
