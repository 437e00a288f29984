package nodevolume

import (
	"slices"
	"time"
)

// VolumeState is what an agent knows of one volume by its own work: what is recorded, what was called, and what came of it.
// The agent has one for each volume, and so has the simulation. A step of a Decision that calls the driver goes through
// Begin, Recorded and End; in between the caller makes the record durable and calls.
//
// A Life has no lock. One goroutine at a time works on it.
type VolumeState struct {
	// Inline: see [Observed].
	Inline bool
	Stage  MountState
	// Pods are those that want the volume or may have it, in the order in which they came.
	Pods []*PodVolume
	// Unstage is the failure that holds back the unstage.
	Unstage Failure
	Users   Users
	Growth  Expansion

	attachment Lookup
	// decidedOn is the attachment that the last step was decided on, and required whether one was.
	decidedOn Attachment
	required  Knowledge
}

// MountState is a stage or a publish: its record, and what is known beyond it.
type MountState struct {
	Record Record
	Phase  Phase
	// ConfirmedAt is when the driver confirmed it to this agent.
	ConfirmedAt Confirmation
	// Inherited: the record was there when the agent started, of this boot or nobody knows of which, something may be mounted, and
	// the record is not confirmed. It may have been, and the confirmation was lost: a pod may run on it.
	Inherited bool
}

// inUse: what it speaks of may be there, and was made under the handshake over volumesInUse.
func (p MountState) inUse() bool { return p.Phase != Absent && p.Record.InUse }

// PodVolume is the volume for one pod.
type PodVolume struct {
	Key PublishKey
	MountState
	Failure Failure
}

// Facts is what others know of a volume at one moment.
type Facts struct {
	Node           Node
	AttachRequired Knowledge
	Driver         Driver
	Unaccounted    bool
	// Pod is what is known of the pod of a publication.
	Pod func(*PodVolume) PodFacts
}

// PodFacts is what is known of a pod and of how it wants the volume.
type PodFacts struct {
	PodState
	// Wants: the pod is known to want the volume, with these:
	Wants    bool
	Label    string
	SolePod  bool
	ReadOnly bool
}

// PodState is what has been said of a pod.
type PodState struct {
	// Set: its owner said that its volumes shall be mounted. Removed: that its containers have ended.
	Set, Removed bool
	// Ending: its object is gone or says that the pod is over, and its containers may run.
	Ending bool
	// Deleting: its object has a deletion timestamp.
	Deleting bool
	// Resolved: it is known which volumes it wants.
	Resolved bool
	// PodsSynced: every pod was set that there is.
	PodsSynced bool
}

// demand is what follows from it for a publication.
func (f PodFacts) demand(p *PodVolume, unaccounted bool) Demand {
	switch {
	case f.Removed:
		return Released
	case f.Ending:
		return Ending
	case f.Set && f.Wants && f.Deleting && p.Phase == Absent && !unaccounted:
		return Released // a pod that ends gets no first mount; one that it has stays
	case f.Set && f.Wants:
		return Wanted
	case f.Set && f.Resolved && p.Phase == Absent, !f.Set && (f.PodsSynced || p.Record.Leaving):
		return Released
	default: // also of a pod that wants something else now, and may run on what it has
		return DemandUnknown
	}
}

// Demand is what the pod's owner says about a publication.
func (l *VolumeState) Demand(facts Facts, p *PodVolume) Demand {
	return facts.Pod(p).demand(p, facts.Unaccounted)
}

// EnsurePod returns the entry for a pod, and makes it if it is new.
func (l *VolumeState) EnsurePod(key PublishKey) *PodVolume {
	if p := l.podVolume(key); p != nil {
		return p
	}
	p := &PodVolume{Key: key}
	l.Pods = append(l.Pods, p)
	return p
}

func (l *VolumeState) podVolume(key PublishKey) *PodVolume {
	if i := slices.IndexFunc(l.Pods, func(p *PodVolume) bool { return p.Key == key }); i >= 0 {
		return l.Pods[i]
	}
	return nil
}

// AddRecord takes in a record that was there when the agent started.
func (l *VolumeState) AddRecord(record Record, bootID string, mounted Knowledge) {
	place := MountState{Record: record, Phase: record.Rebuilt(bootID, mounted)}
	place.Inherited = place.Phase == Uncertain && mounted != No && (record.BootID == "" || record.BootID == bootID)
	l.Inline = record.Inline
	if record.Kind == StageKind {
		l.Stage = place
	}
	if record.Pod.UID == "" || record.Kind == StageKind && record.Leaving {
		return
	}
	// Also the pod that it was staged for: until its owner speaks, it may be wanted.
	p := l.EnsurePod(PublishKey{PodUID: record.Pod.UID, SpecName: record.SpecName})
	if record.Kind == PublishKind {
		p.MountState = place
	}
}

// InUseHandshake says whether a record of the volume was made under the handshake over volumesInUse. Of one that was made in the
// place of a torn one nobody knows. doubtful: there may be such a record beside those that are known.
func (l *VolumeState) InUseHandshake(doubtful bool) Knowledge {
	known := No
	if doubtful {
		known = Unknown
	}
	for _, place := range l.mounts() {
		switch {
		case !place.inUse():
		case !place.Record.Guessed:
			return Yes
		default:
			known = Unknown
		}
	}
	return known
}

func (l *VolumeState) mounts() []MountState {
	all := []MountState{l.Stage}
	for _, p := range l.Pods {
		all = append(all, p.MountState)
	}
	return all
}

// BeginTurn says that time has passed in which nobody worked on the volume.
func (l *VolumeState) BeginTurn() {
	l.attachment.Invalidate()
	l.Users.Found = Unknown
}

// Wake ends the back-offs: something that the volume may have waited for has changed.
func (l *VolumeState) Wake() {
	l.Unstage.At, l.Growth.Failure.At, l.Users.Search.At = time.Time{}, time.Time{}, time.Time{}
	for _, p := range l.Pods {
		p.Failure.At = time.Time{}
	}
}

// Decide says what to do next. Pods that are gone and have nothing published are dropped.
func (l *VolumeState) Decide(now time.Time, facts Facts) Decision {
	var left []PublishKey
	l.Pods = slices.DeleteFunc(l.Pods, func(p *PodVolume) bool {
		gone := p.Phase == Absent && l.Demand(facts, p) == Released
		if gone {
			left = append(left, p.Key)
		}
		return gone
	})
	if facts.AttachRequired == No {
		// What was read before the CSIDriver changed is not for a stage without the handshake.
		l.attachment.Invalidate()
	}
	l.decidedOn, l.required = l.attachment.Known(facts.Node), facts.AttachRequired
	decision := Decide(now, l.desired(facts), l.observed(facts))
	decision.Dropped = left
	return decision
}

func (l *VolumeState) desired(facts Facts) Desired {
	var d Desired
	for _, p := range l.Pods {
		pod := facts.Pod(p)
		d.Pods = append(d.Pods, Pod{
			Key: p.Key, Demand: pod.demand(p, facts.Unaccounted), Publish: p.Phase, LastConfirmed: p.ConfirmedAt, Leaving: pod.Deleting,
			Label: pod.Label, PublishedLabel: p.Record.SELinuxLabel,
			Inherited: p.Inherited,
			SolePod:   pod.Wants && pod.SolePod || !pod.Wants && p.Record.SolePod,
			ReadOnly:  pod.ReadOnly, Failure: p.Failure,
		})
	}
	return d
}

func (l *VolumeState) observed(facts Facts) Observed {
	return Observed{
		Inline: l.Inline, Node: facts.Node, AttachRequired: facts.AttachRequired, Driver: facts.Driver, Unaccounted: facts.Unaccounted,
		RecordedInUse: slices.ContainsFunc(l.mounts(), MountState.inUse),
		Attachment:    l.decidedOn,
		Stage:         Stage{Phase: l.Stage.Phase, AttachmentUID: l.stagedAttachment(), Label: l.Stage.Record.SELinuxLabel},
		Unstage:       l.Unstage, Users: l.Users, Growth: Growth{Due: l.Growth.Due(), Failure: l.Growth.Failure},
	}
}

// stagedAttachment is the attachment that the volume is staged for. A record of the stage that was torn does not tell; that of a publish on it does.
func (l *VolumeState) stagedAttachment() string {
	for _, place := range l.mounts() {
		if place.Phase != Absent && place.Record.AttachmentUID != "" {
			return place.Record.AttachmentUID
		}
	}
	return ""
}

// BeginRead says that the VolumeAttachment is about to be read. What it returns is for [VolumeState.Read].
func (l *VolumeState) BeginRead(node Node) Reading { return l.attachment.Begin(node) }

// Read takes what a read of the VolumeAttachment found.
func (l *VolumeState) Read(begun Reading, found Attachment) { l.attachment.Read(begun, found) }

// Attachment is the one that the last step was decided on, Unknown for a step that needs none.
func (l *VolumeState) Attachment() Attachment { return l.decidedOn }

// StillValid says whether what the last step was decided on holds still, as far as the agent has seen: the attachment, and whether the driver
// asks for one. If not, the step must not be done, but decided anew.
func (l *VolumeState) StillValid(node Node, attachRequired Knowledge) bool {
	return attachRequired == l.required && (l.decidedOn.UID == "" || l.attachment.Known(node).UID == l.decidedOn.UID)
}

// Call is a call to the driver, from the record before it to what stands after it.
type Call struct {
	Step Step
	// Record is to be made durable before anything is made for the volume, a directory or a call, so that whatever an
	// agent that dies leaves behind is known.
	Record Record
	// Write: the record is not on the disk yet, where Earlier is, if anything.
	Write   bool
	Earlier Record
	// Before is the phase before the call.
	Before Phase
	// inherits: what the record that this one takes the place of speaks of may be mounted, and a pod may run on it.
	inherits bool
}

// Begin is the call of a step. For StageVolume and Publish, intent is the record but for what the volume's life adds: under which
// attachment it is made, and what an earlier call may have done. lost is not nil if a record of this name should have been there and was
// not, and says whether something is mounted where that would have it: this one takes its place, and what was mounted is mounted once
// more at the same path, and undone from there.
func (l *VolumeState) Begin(step Step, intent Record, lost *Knowledge) Call {
	place := l.mount(step)
	call := Call{Step: step, Record: place.Record, Earlier: place.Record, Before: place.Phase}
	switch step.(type) {
	case StageVolume, Publish:
		call.Record, call.Write = intent, true
		call.Record.InUse, call.Record.AttachmentUID = l.decidedOn.UID != "", l.decidedOn.UID
		if call.Before != Absent {
			call.Record = call.Record.After(place.Record)
		}
		if lost != nil {
			call.inherits = call.Before == Absent && *lost != No
			call.Before = Uncertain
			call.Record = call.Record.After(Record{InUse: !intent.Inline, Guessed: !intent.Inline})
		}
	case Unpublish, Unstage:
		call.Write = !call.Record.Leaving
		call.Record.Leaving, call.Record.Confirmed = true, false
	}
	return call
}

// Recorded says that the call's record is durable.
func (l *VolumeState) Recorded(call Call) {
	if call.Write {
		place := l.mount(call.Step)
		place.Inherited = place.Inherited || call.inherits
		place.Record, place.Phase = call.Record, Uncertain
	}
}

// After is the phase that the driver's reply leads to. A call that was not made counts as refused.
func (c Call) After(reply Reply) Phase {
	switch c.Step.(type) {
	case Unpublish, Unstage:
		return AfterUndo(reply)
	default:
		return AfterCall(c.Before, reply)
	}
}

// End says what stands after the call. heard is when the driver confirmed it, zero if it did not.
func (l *VolumeState) End(call Call, phase Phase, heard Confirmation) {
	place := l.mount(call.Step)
	place.Phase, place.Inherited = phase, place.Inherited && phase == Uncertain
	if phase == Confirmed && !heard.At.IsZero() {
		place.Record.Confirmed, place.ConfirmedAt = true, heard
	}
}

// mount is what a step makes or undoes.
func (l *VolumeState) mount(step Step) *MountState {
	switch step.(type) {
	case StageVolume, Unstage:
		return &l.Stage
	default:
		return &l.EnsurePod(KeyOf(step)).MountState
	}
}

// KeyOf is the pod that a step is done for; zero for the unstage.
func KeyOf(step Step) PublishKey {
	switch step := step.(type) {
	case ReadCapabilities:
		return step.For
	case ReadAttachment:
		return step.For
	case StageVolume:
		return step.For
	case Publish:
		return step.Key
	case Republish:
		return step.Key
	case Unpublish:
		return step.Key
	case LookForUsers:
		return step.Key
	case Expand:
		return step.Key
	default:
		return PublishKey{}
	}
}

// Bounds of the longest wait before something is looked at again that tells nobody when it changes.
const (
	// attachmentWait: a node may not watch VolumeAttachments (the Node authorizer permits get alone). What wakes a volume
	// as a rule is that the Node reports it attached, which comes after.
	attachmentWait = 5 * time.Second
	// usersWait: a process that unmounts tells nobody.
	usersWait = 10 * time.Second
)

// Failed notes that a step failed. released: the pod that it was done for is not wanted any more; what kept it from being mounted
// does not hold up the way back.
func (l *VolumeState) Failed(step Step, at time.Time, jitter float64, released bool) {
	failure := l.failure(step)
	switch step.(type) {
	case Unstage, Unpublish, Expand:
	default:
		if released {
			*failure = Failure{}
			return
		}
	}
	*failure = failure.next(at, jitter)
	if _, reads := step.(ReadAttachment); reads {
		failure.AtMost = attachmentWait
	}
}

// Succeeded clears the failures of a step.
func (l *VolumeState) Succeeded(step Step) {
	*l.failure(step) = Failure{}
}

// failure is what holds back a step.
func (l *VolumeState) failure(step Step) *Failure {
	switch step.(type) {
	case Unstage:
		return &l.Unstage
	case Expand:
		return &l.Growth.Failure
	default:
		return &l.EnsurePod(KeyOf(step)).Failure
	}
}

// UsersSearched says whether somebody else was found to have the volume mounted, or nobody could tell.
func (l *VolumeState) UsersSearched(found bool, at time.Time, jitter float64) {
	if !found {
		l.Users = Users{Found: No}
		return
	}
	l.Users = Users{Found: Yes, Search: l.Users.Search.next(at, jitter)}
	l.Users.Search.AtMost = usersWait
}

// EndStep says that a step has ended. What was found of users holds for the very next one alone.
func (l *VolumeState) EndStep(step Step) {
	if _, looked := step.(LookForUsers); !looked {
		l.Users.Found = Unknown
	}
	if InvalidatesAttachment(step) {
		l.attachment.Invalidate()
	}
}

func (f Failure) next(at time.Time, jitter float64) Failure {
	return Failure{Count: f.Count + 1, At: at, Jitter: jitter}
}
