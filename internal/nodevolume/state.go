package nodevolume

import (
	"slices"
	"time"
)

// VolumeState is what the agent knows about one volume from its own work: what is recorded, what was called, and the results. The
// agent has one for each volume, and so has the simulation. A step that calls the driver goes through Begin, Recorded and End; in
// between the caller makes the record durable and calls the driver.
//
// A VolumeState has no lock: one goroutine at a time works on it.
type VolumeState struct {
	// Inline: see [Observed].
	Inline bool
	Stage  MountState
	// Pods are those that want the volume or may have it published, oldest first.
	Pods []*PodVolume
	// Unstage is the failure that delays the unstage.
	Unstage Failure
	Users   Users
	Growth  Expansion

	attachment Lookup
	// decidedOn is the attachment that the last step was decided on; required is whether the driver needed one then.
	decidedOn Attachment
	required  Knowledge
	// woken: something changed after the last decision, so a step that was decided before and fails says nothing about how it is now.
	woken bool
}

// MountState is the state of a stage or a publish: its record, and what is known beyond the record.
type MountState struct {
	Record Record
	Phase  Phase
	// ConfirmedAt is when the driver confirmed it to this agent.
	ConfirmedAt Confirmation
	// Inherited: the record existed when the agent started, is from this boot (or from an unknown one), and is not confirmed, and
	// something may be mounted. The confirmation may have been lost, so a pod may be running on the mount.
	Inherited bool
}

// inUse reports whether the mount may exist and was made under the volumesInUse handshake.
func (p MountState) inUse() bool { return p.Phase != Absent && p.Record.InUse }

// PodVolume is the state of the volume for one pod.
type PodVolume struct {
	Key PublishKey
	MountState
	Failure Failure
}

// Facts is what other components know about the volume.
type Facts struct {
	Node           Node
	AttachRequired Knowledge
	Driver         Driver
	Unaccounted    bool
	// Pod returns what is known about the pod of a publish.
	Pod func(*PodVolume) PodFacts
}

// PodFacts is what is known about a pod and how it wants the volume.
type PodFacts struct {
	PodState
	// Wants: the pod is known to want the volume, with the options below.
	Wants    bool
	Label    string
	SolePod  bool
	ReadOnly bool
}

// PodState is what the owner of the pods and the API report about a pod.
type PodState struct {
	// Set: the owner wants the pod's volumes mounted. Removed: the pod's containers have ended.
	Set, Removed bool
	// Ending: the pod's object is gone or has a final phase, and its containers may still run.
	Ending bool
	// Deleting: its object has a deletion timestamp.
	Deleting bool
	// Resolved: the volumes that the pod wants are known.
	Resolved bool
	// PodsSynced: the owner has set every pod that exists.
	PodsSynced bool
}

// demand derives what the pod needs from a publish.
func (f PodFacts) demand(p *PodVolume, unaccounted bool) Demand {
	switch {
	case f.Removed:
		return Released
	case f.Ending:
		return Ending
	case f.Set && f.Wants && f.Deleting && p.Phase == Absent && !unaccounted:
		return Released // a terminating pod gets no first mount, and keeps one that it has
	case f.Set && f.Wants:
		return Wanted
	case f.Set && f.Resolved && p.Phase == Absent, !f.Set && (f.PodsSynced || p.Record.Leaving):
		return Released
	default: // also for a pod that now wants another volume, and may be running on this one
		return DemandUnknown
	}
}

// Demand returns what the pod needs from a publish.
func (s *VolumeState) Demand(facts Facts, p *PodVolume) Demand {
	return facts.Pod(p).demand(p, facts.Unaccounted)
}

// EnsurePod returns the state for a pod, and creates it if it does not exist.
func (s *VolumeState) EnsurePod(key PublishKey) *PodVolume {
	if p := s.podVolume(key); p != nil {
		return p
	}
	p := &PodVolume{Key: key}
	s.Pods = append(s.Pods, p)
	return p
}

func (s *VolumeState) podVolume(key PublishKey) *PodVolume {
	if i := slices.IndexFunc(s.Pods, func(p *PodVolume) bool { return p.Key == key }); i >= 0 {
		return s.Pods[i]
	}
	return nil
}

// AddRecord adds a record that existed when the agent started.
func (s *VolumeState) AddRecord(record Record, bootID string, mounted Knowledge) {
	mount := MountState{Record: record, Phase: record.Rebuilt(bootID, mounted)}
	mount.Inherited = mount.Phase == Uncertain && mounted != No && (record.BootID == "" || record.BootID == bootID)
	s.Inline = record.Inline
	if record.Kind == StageKind {
		s.Stage = mount
	}
	if record.Pod.UID == "" || record.Kind == StageKind && record.Leaving {
		return
	}
	// The pod for which the volume was staged counts too: until its owner reports it, it may want the volume.
	p := s.EnsurePod(PublishKey{PodUID: record.Pod.UID, SpecName: record.SpecName})
	if record.Kind == PublishKind {
		p.MountState = mount
	}
}

// InUseHandshake reports whether a record of the volume was made under the volumesInUse handshake. For a record that replaces a
// torn one that is unknown. doubtful: such a record may exist besides the known ones.
func (s *VolumeState) InUseHandshake(doubtful bool) Knowledge {
	known := No
	if doubtful {
		known = Unknown
	}
	for _, mount := range s.mounts() {
		switch {
		case !mount.inUse():
		case !mount.Record.Guessed:
			return Yes
		default:
			known = Unknown
		}
	}
	return known
}

func (s *VolumeState) mounts() []MountState {
	all := []MountState{s.Stage}
	for _, p := range s.Pods {
		all = append(all, p.MountState)
	}
	return all
}

// BeginTurn drops what may have become outdated since the last turn of the volume.
func (s *VolumeState) BeginTurn() {
	s.attachment.Invalidate()
	s.Users.Found = Unknown
}

// Wake ends the back-offs, because something that the volume may be waiting for has changed.
func (s *VolumeState) Wake() {
	s.Unstage.At, s.Growth.Failure.At, s.Users.Search.At = time.Time{}, time.Time{}, time.Time{}
	for _, p := range s.Pods {
		p.Failure.At = time.Time{}
	}
	s.woken = true
}

// Decide returns the next step. Pods that are gone and have nothing published are dropped.
func (s *VolumeState) Decide(now time.Time, facts Facts) Decision {
	var left []PublishKey
	s.Pods = slices.DeleteFunc(s.Pods, func(p *PodVolume) bool {
		gone := p.Phase == Absent && s.Demand(facts, p) == Released
		if gone {
			left = append(left, p.Key)
		}
		return gone
	})
	if facts.AttachRequired == No {
		// An attachment that was read before the CSIDriver changed must not be used for a stage without the handshake.
		s.attachment.Invalidate()
	}
	s.decidedOn, s.required, s.woken = s.attachment.Known(facts.Node), facts.AttachRequired, false
	decision := Decide(now, s.desired(facts), s.observed(facts))
	decision.Dropped = left
	return decision
}

func (s *VolumeState) desired(facts Facts) Desired {
	var d Desired
	for _, p := range s.Pods {
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

func (s *VolumeState) observed(facts Facts) Observed {
	return Observed{
		Inline: s.Inline, Node: facts.Node, AttachRequired: facts.AttachRequired, Driver: facts.Driver, Unaccounted: facts.Unaccounted,
		RecordedInUse: slices.ContainsFunc(s.mounts(), MountState.inUse),
		Attachment:    s.decidedOn,
		Stage:         Stage{Phase: s.Stage.Phase, AttachmentUID: s.stagedAttachment(), Label: s.Stage.Record.SELinuxLabel},
		Unstage:       s.Unstage, Users: s.Users, Growth: Growth{Due: s.Growth.Due(), Failure: s.Growth.Failure},
	}
}

// stagedAttachment is the UID of the attachment that the volume is staged for. If the record of the stage is torn, that of a
// publish has it.
func (s *VolumeState) stagedAttachment() string {
	for _, mount := range s.mounts() {
		if mount.Phase != Absent && mount.Record.AttachmentUID != "" {
			return mount.Record.AttachmentUID
		}
	}
	return ""
}

// BeginRead starts a read of the VolumeAttachment; pass the result to [VolumeState.Read].
func (s *VolumeState) BeginRead(node Node) Reading { return s.attachment.Begin(node) }

// Read records what a read of the VolumeAttachment found.
func (s *VolumeState) Read(begun Reading, found Attachment) { s.attachment.Read(begun, found) }

// Attachment is the attachment that the last step was decided on; Unknown if the step needs none.
func (s *VolumeState) Attachment() Attachment { return s.decidedOn }

// StillValid reports whether the facts that the last step was decided on still hold: the attachment, and whether the driver needs
// one. If not, discard the step and decide again.
func (s *VolumeState) StillValid(node Node, attachRequired Knowledge) bool {
	return attachRequired == s.required && (s.decidedOn.UID == "" || s.attachment.Known(node).UID == s.decidedOn.UID)
}

// Call is a call to the driver, with the record before it and the state after it.
type Call struct {
	Step Step
	// Record must be durable before a directory is created or the driver is called, so that whatever an agent that crashes leaves
	// behind is known.
	Record Record
	// Write: the record is not on disk yet. Earlier is the one that is, if any.
	Write   bool
	Earlier Record
	// Before is the phase before the call.
	Before Phase
	// inherits: the mount of the record that this one replaces may exist, and a pod may be running on it.
	inherits bool
}

// Begin returns the call of a step. For StageVolume and Publish, intent is the record except for what VolumeState adds: the
// attachment, and what an earlier call may have done. lost is not nil if a record of this name is missing although it should exist;
// it is whether something is mounted where that record would have it. The new record takes its place: the volume is mounted at
// the same path again, and unmounted from there.
func (s *VolumeState) Begin(step Step, intent Record, lost *Knowledge) Call {
	mount := s.mount(step)
	call := Call{Step: step, Record: mount.Record, Earlier: mount.Record, Before: mount.Phase}
	switch step.(type) {
	case StageVolume, Publish:
		call.Record, call.Write = intent, true
		call.Record.InUse, call.Record.AttachmentUID = s.decidedOn.UID != "", s.decidedOn.UID
		if call.Before != Absent {
			call.Record = call.Record.After(mount.Record)
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

// Recorded notes that the call's record is durable.
func (s *VolumeState) Recorded(call Call) {
	if call.Write {
		mount := s.mount(call.Step)
		mount.Inherited = mount.Inherited || call.inherits
		mount.Record, mount.Phase = call.Record, Uncertain
	}
}

// After returns the phase after the driver's reply. A call that was not sent counts as refused.
func (c Call) After(reply Reply) Phase {
	switch c.Step.(type) {
	case Unpublish, Unstage:
		return AfterUndo(reply)
	default:
		return AfterCall(c.Before, reply)
	}
}

// End records the state after the call. confirmed is when the driver confirmed it, zero if it did not.
func (s *VolumeState) End(call Call, phase Phase, confirmed Confirmation) {
	mount := s.mount(call.Step)
	mount.Phase, mount.Inherited = phase, mount.Inherited && phase == Uncertain
	if phase == Confirmed && !confirmed.At.IsZero() {
		mount.Record.Confirmed, mount.ConfirmedAt = true, confirmed
	}
}

// mount returns the state that a step changes.
func (s *VolumeState) mount(step Step) *MountState {
	switch step.(type) {
	case StageVolume, Unstage:
		return &s.Stage
	default:
		return &s.EnsurePod(KeyOf(step)).MountState
	}
}

// KeyOf returns the pod that a step is for, zero for the unstage.
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

// The longest waits for what sends no notification when it changes.
const (
	// attachmentWait: a node may not watch VolumeAttachments, because the Node authorizer permits only get. Usually the Node's
	// volumesAttached, which is written later, wakes the volume.
	attachmentWait = 5 * time.Second
	// usersWait: an unmount by another process sends no notification.
	usersWait = 10 * time.Second
)

// Failed records that a step failed. released: the pod no longer wants the volume, so what prevented its mount must not delay the
// unmount.
func (s *VolumeState) Failed(step Step, at time.Time, jitter float64, released bool) {
	failure := s.failure(step)
	switch step.(type) {
	case Unstage, Unpublish, Expand:
	default:
		if released {
			*failure = Failure{}
			return
		}
	}
	*failure = s.next(*failure, at, jitter)
	if _, reads := step.(ReadAttachment); reads {
		failure.AtMost = attachmentWait
	}
}

// Succeeded clears the failures of a step.
func (s *VolumeState) Succeeded(step Step) {
	*s.failure(step) = Failure{}
}

// failure returns the failure that delays a step.
func (s *VolumeState) failure(step Step) *Failure {
	switch step.(type) {
	case Unstage:
		return &s.Unstage
	case Expand:
		return &s.Growth.Failure
	default:
		return &s.EnsurePod(KeyOf(step)).Failure
	}
}

// UsersSearched records whether another user of the volume was found, or could not be ruled out.
func (s *VolumeState) UsersSearched(found bool, at time.Time, jitter float64) {
	if !found {
		s.Users = Users{Found: No}
		return
	}
	s.Users = Users{Found: Yes, Search: s.next(s.Users.Search, at, jitter)}
	s.Users.Search.AtMost = usersWait
}

// EndStep notes that a step has ended. The result of a search for users is valid for the next step only.
func (s *VolumeState) EndStep(step Step) {
	if _, looked := step.(LookForUsers); !looked {
		s.Users.Found = Unknown
	}
	if InvalidatesAttachment(step) {
		s.attachment.Invalidate()
	}
}

// next returns the failure after one more in a row. It delays nothing if the volume was woken during the attempt.
func (s *VolumeState) next(f Failure, at time.Time, jitter float64) Failure {
	if s.woken {
		at = time.Time{}
	}
	return Failure{Count: f.Count + 1, At: at, Jitter: jitter}
}
