package attachment

import "time"

// Decision is what to do next for one volume.
type Decision struct {
	// Steps are taken in their order. A WithdrawReport is answered by the API server
	// and decided upon again in the same turn.
	Steps []Step
	// Reason is why the volume is not where it shall be: that of the first Hold, or
	// Settled.
	Reason Reason
	// RecheckAt is when time alone will change the decision. Zero means that only an
	// event can.
	RecheckAt time.Time
}

// Step is one of Attach, Report, WithdrawReport, Detach, ForceDetach, Note, NoteNode
// and Hold.
type Step interface{ step() }

// Attach makes the VolumeAttachment of the volume on a node.
type Attach struct {
	Node             NodeName
	PersistentVolume string
	// Machine is recorded on the new object.
	Machine Machine
}

// Report puts the volume into the node's status.volumesAttached.
type Report struct {
	Node       NodeName
	NodeUID    string
	Attachment Ref // the confirmed attachment that is reported (S9); none if Unattached
	// Again is set when the volume had been withdrawn, or may have been, and is in
	// use or wanted again: no news for the pods.
	Again bool
}

// WithdrawReport takes the volume out of the node's status.volumesAttached. Its
// answer is the Node as the API server knows it, and that answer is needed even
// where nothing is left to withdraw (S3).
type WithdrawReport struct {
	Node    NodeName
	NodeUID string // empty when the Node object is gone
	// NewVersion is set when the Node must get a new version even if nothing is left to
	// withdraw, so that a report which is still on its way fails.
	NewVersion bool
	// DetachRequested is since when the detach waits, zero if it does not: whoever
	// writes asks Policy.MayWithdraw with it.
	DetachRequested time.Time
	// Authority is what allows it although the volume may be in use, nil if nothing has
	// to. It is set where the withdrawal is the whole detach: elsewhere ForceDetach has it.
	Authority Authority
}

// Detach deletes the VolumeAttachment of a volume that is not in use.
type Detach struct {
	Node       NodeName
	Attachment Ref
}

// ForceDetach deletes the VolumeAttachment of a volume that may be in use.
type ForceDetach struct {
	Node       NodeName
	Attachment Ref
	Authority  Authority
}

// Note writes belay's annotations on the VolumeAttachment. Each field is the value
// that shall be there afterwards, except CalledOff.
type Note struct {
	Node       NodeName
	Attachment Ref
	// DetachRequested is stored, or removed when zero.
	DetachRequested time.Time
	// Machine is stored.
	Machine Machine
	// CalledOff, when not zero, is stored. It is written only to give the object a
	// new version, so that a delete of the old one fails.
	CalledOff time.Time
}

// NoteNode stores on the Node since when the detach of an Unattached volume waits, or
// removes that.
type NoteNode struct {
	Node    NodeName
	NodeUID string
	// DetachRequested is stored, or removed when zero.
	DetachRequested time.Time
}

// Hold waits, for Reason, with regard to one node.
type Hold struct {
	Node       NodeName
	Attachment string // name, empty when there is none
	Reason     Reason
	// Wanted tells a volume that pods wait for from one that waits to be detached.
	Wanted bool
	// Detail is the driver's words, for AttachFailed and DetachFailed.
	Detail string
	// Blockers are what keeps an exclusive volume from this node.
	Blockers []Blocker
}

func (Attach) step()         {}
func (Report) step()         {}
func (WithdrawReport) step() {}
func (Detach) step()         {}
func (ForceDetach) step()    {}
func (Note) step()           {}
func (NoteNode) step()       {}
func (Hold) step()           {}

// Blocker is one thing that says that the volume is, or may be, at a node.
type Blocker struct {
	Node NodeName
	Kind BlockerKind
}

// BlockerKind says how we know.
type BlockerKind string

// What can block an exclusive volume (S1).
const (
	ByAttachment BlockerKind = "VolumeAttachment"             // an object exists
	ByDeletion   BlockerKind = "DetachUnderway"               // an object exists and is being deleted
	ByReport     BlockerKind = "VolumesAttached"              // a node's report lists the volume
	ByUse        BlockerKind = "VolumesInUse"                 // a node says that it uses the volume
	ByTurn       BlockerKind = "AttachedElsewhere"            // another node was given it just now
	ByForeigner  BlockerKind = BlockerKind(ForeignAttachment) // an object under a name that belay does not give
)

// Reason is why a volume waits. The words are used unchanged in logs, metrics, the
// annotation of events, and tools; Reasons lists them.
type Reason string

// The reasons.
const (
	// Settled: nothing waits.
	Settled Reason = "Settled"
	// Attaching: the attacher has not confirmed yet.
	Attaching Reason = "Attaching"
	// AttachUnanswered: the attacher has not confirmed for AnswerTimeout.
	AttachUnanswered Reason = "AttachUnanswered"
	// AttachFailed: the driver refused; the attacher tries again.
	AttachFailed Reason = "AttachFailed"
	// OtherWriterAttached: the volume is exclusive, and is or may be elsewhere.
	OtherWriterAttached Reason = "OtherWriterAttached"
	// OtherWriterDetaching: as before, but its detach is under way.
	OtherWriterDetaching Reason = "OtherWriterDetaching"
	// ForeignAttachment: somebody made an attachment under another name.
	ForeignAttachment Reason = "ForeignAttachment"
	// Detaching: the attacher has not confirmed the detach yet.
	Detaching Reason = "Detaching"
	// DetachUnanswered: the attacher has not confirmed the detach for AnswerTimeout.
	DetachUnanswered Reason = "DetachUnanswered"
	// DetachFailed: the driver refused to detach; the attacher tries again.
	DetachFailed Reason = "DetachFailed"
	// StillInUse: the node says that it uses the volume.
	StillInUse Reason = "StillInUse"
	// NodeGone: the Node object is gone, and whether the volume is in use is not known
	// to be No.
	NodeGone Reason = "NodeGone"
	// NodeReturned: the Node object was made anew for a machine that has not been
	// restarted, and has not yet said whether it uses the volume.
	NodeReturned Reason = "NodeReturned"
	// NodeUnknown: the Node could not be read.
	NodeUnknown Reason = "NodeUnknown"
	// NodeNotManaged: the node's own kubelet attaches and detaches.
	NodeNotManaged Reason = "NodeNotManaged"
)

// Reasons lists every Reason, for metrics that must have a series for each.
func Reasons() []Reason {
	return []Reason{
		Settled, Attaching, AttachUnanswered, AttachFailed, OtherWriterAttached, OtherWriterDetaching,
		ForeignAttachment, Detaching, DetachUnanswered, DetachFailed, StillInUse, NodeGone, NodeReturned,
		NodeUnknown, NodeNotManaged,
	}
}

// AnswerTimeout is how long an attacher may stay silent before people are told: the
// two minutes that upstream waits for it (k/k pkg/volume/csi csiTimeout).
const AnswerTimeout = 2 * time.Minute
