package attachment

import (
	"time"

	"belay.dev/belay/internal/decision"
)

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

// Step is one of Attach, Report, WithdrawReport, Check, CheckKubelet, Detach,
// ForceDetach, Note, NoteNode and Hold. Steps for one node are taken in their order,
// those for different nodes side by side.
type Step interface{ OnNode() NodeName }

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
	// DetachRequested is stored with the report of an Implied attachment.
	DetachRequested time.Time
	// Repeated is set when the volume had been withdrawn, or may have been, and is in
	// use or wanted again: no news for the pods.
	Repeated bool
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
	// Expect is what the Node said when this was decided. The withdrawal is made on a
	// version of the Node that still says so, or not at all: then decide again.
	Expect NodeFacts
}

// NodeFacts is what a withdrawal was decided on.
type NodeFacts struct {
	InUse        Knowledge
	Healthy      Knowledge
	OutOfService bool
}

// Facts are those of the node.
func (n Node) Facts() NodeFacts { return NodeFacts{n.InUse, n.Healthy, n.OutOfService} }

// Check reads the Node from the API server and decides again (S3, for an orphan: there
// is no report whose withdrawal would give that answer).
type Check struct{ Node NodeName }

// CheckKubelet looks whether the kubelet of a Node object that replaced another one is
// alive, and decides again. It is repeated at Node.LookDue.
type CheckKubelet struct {
	Node    NodeName
	NodeUID string
}

// Detach deletes the VolumeAttachment of a volume that is not in use. For an Implied
// attachment, whose Ref is empty, there is nothing to delete but the memory of it.
type Detach struct {
	Node       NodeName
	Attachment Ref
}

// ForceDetach is Detach for a volume that may be in use.
type ForceDetach struct {
	Node       NodeName
	Attachment Ref
	Authority  Authority
	// Reason is why the volume may be in use there.
	Reason Reason
}

// AnnotateAttachment writes belay's annotations on the VolumeAttachment. Each field is the value
// that shall be there afterwards, except CalledOff.
type AnnotateAttachment struct {
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

// AnnotateNode stores on the Node since when the detach of an Implied attachment waits, or
// removes that.
type AnnotateNode struct {
	Node    NodeName
	NodeUID string
	// DetachRequested is stored, or removed when zero.
	DetachRequested time.Time
}

// Wait waits, for Reason, with regard to one node. What ends it is the exit of the reason,
// or the time At if that comes first.
type Wait struct {
	Node       NodeName
	Attachment string // name, empty when there is none
	Reason     Reason
	// Wanted tells a volume that pods wait for from one that waits to be detached.
	Wanted bool
	// Detail is the driver's message, for AttachFailed and DetachFailed.
	Detail string
	// Unconfirmed is when an attach was requested that was never confirmed, for a volume
	// that may be in use by it. Detail is its error, if it failed.
	Unconfirmed time.Time
	// Since is when the wait began; zero when that is not known.
	Since time.Time
	// At is when time alone ends the wait: the policy Forces then detaches the volume, or
	// the reason changes. Zero when only an event can end it.
	At time.Time
	// Forces is the policy that applies at At, nil if none does. Without At it applies, or
	// its time begins, when no pods want the volume at the node any more.
	Forces Authority
	// Overdue is when the unmount timeout is over, whether or not the node is Ready. While
	// it is, nothing is forced; after Overdue the volume is detached as soon as it is not.
	Overdue time.Time
	// Blockers are what keeps an exclusive volume from this node.
	Blockers []Blocker
}

// OnNode is the step's node.
func (s Attach) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s Report) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s WithdrawReport) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s Check) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s CheckKubelet) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s Detach) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s ForceDetach) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s AnnotateAttachment) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s AnnotateNode) OnNode() NodeName { return s.Node }

// OnNode is the step's node.
func (s Wait) OnNode() NodeName { return s.Node }

// Blocker is one thing that says that the volume is, or may be, at a node.
type Blocker struct {
	Node NodeName
	Kind BlockerKind
	// Cause is what the volume waits for at that node. It has no Reason when the volume
	// stays there; Since is then when it was attached.
	Cause Cause
	// Ready is the node's health, where what keeps the volume there ends otherwise on a
	// node that is not Ready.
	Ready Knowledge
}

// Cause is why the volume is still at another node: the fields of the Hold for that node.
type Cause struct {
	Reason      Reason
	Attachment  string
	Detail      string
	Unconfirmed time.Time
	Since       time.Time
	At          time.Time
	Forces      Authority
	Overdue     time.Time
}

// Cause is why the volume waits.
func (s Wait) Cause() Cause {
	return Cause{
		Reason: s.Reason, Attachment: s.Attachment, Detail: s.Detail, Unconfirmed: s.Unconfirmed,
		Since: s.Since, At: s.At, Forces: s.Forces, Overdue: s.Overdue,
	}
}

// BlockerKind says how we know.
type BlockerKind string

// What can block an exclusive volume (S1).
const (
	ByAttachment        BlockerKind = "VolumeAttachment"             // an object exists
	ByDeletion          BlockerKind = "DetachUnderway"               // an object exists and is being deleted
	ByUse               BlockerKind = "VolumesInUse"                 // a node was given it, and no object says so
	ByNewAttachment     BlockerKind = "AttachedElsewhere"            // another node was given it just now
	ByCreate            BlockerKind = "CreateUnanswered"             // a VolumeAttachment may still be created
	ByForeignAttachment BlockerKind = BlockerKind(ForeignAttachment) // an object under a name that belay does not give
)

// Reason is why a volume waits.
type Reason = decision.Reason

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
	// ForeignAttachment: an attachment exists under a name that belay does not give.
	ForeignAttachment Reason = "ForeignAttachment"
	// Detaching: the attacher has not confirmed the detach yet.
	Detaching Reason = "Detaching"
	// DetachUnanswered: the attacher has not confirmed the detach for AnswerTimeout.
	DetachUnanswered Reason = "DetachUnanswered"
	// DetachFailed: the driver refused to detach; the attacher tries again.
	DetachFailed Reason = "DetachFailed"
	// StillInUse: the node lists the volume in use.
	StillInUse Reason = "StillInUse"
	// OutOfServiceNodeReady: the node carries the out-of-service taint, but it is Ready
	// and lists the volume in use: the taint is not believed.
	OutOfServiceNodeReady Reason = "OutOfServiceNodeReady"
	// NodeGone: the Node object is gone, and whether the volume is in use is not known
	// to be No.
	NodeGone Reason = "NodeGone"
	// NodeReturned: the Node object was recreated for a machine that may not have been
	// restarted, and has not yet shown whether it uses the volume.
	NodeReturned Reason = "NodeReturned"
	// NodeReplaced: the Node object stands for another machine than the one that the
	// volume was attached to, and nothing is known of that one.
	NodeReplaced Reason = "NodeReplaced"
	// NodeUnknown: the Node could not be read.
	NodeUnknown Reason = "NodeUnknown"
	// NodeNotManaged: the node's own kubelet attaches and detaches.
	NodeNotManaged Reason = "NodeNotManaged"
)

// The exits of waits.
var (
	attachmentChanges = decision.Exit{By: "a VolumeAttachment of the volume changes or is removed"}
	nodeChanges       = decision.Exit{By: "the Node object comes, goes, or changes its lists, its health, its taints or its machine"}
	// holderReleases is one of the two above at another node, or the time of a blocker.
	holderReleases = decision.Exit{By: "the volume is released elsewhere", Timed: true}
)

// exits names what ends each wait. A reason without an exit cannot be waited for.
var exits = decision.Exits{
	Attaching: attachmentChanges, AttachUnanswered: attachmentChanges, AttachFailed: attachmentChanges,
	Detaching: attachmentChanges, DetachUnanswered: attachmentChanges, DetachFailed: attachmentChanges,
	ForeignAttachment: attachmentChanges,
	StillInUse:        nodeChanges, OutOfServiceNodeReady: nodeChanges,
	NodeGone: nodeChanges, NodeReturned: nodeChanges, NodeReplaced: nodeChanges, NodeUnknown: nodeChanges, NodeNotManaged: nodeChanges,
	OtherWriterAttached: holderReleases, OtherWriterDetaching: holderReleases,
}

// ForHolder says whether a wait for this reason ends when the volume is released at another node.
func ForHolder(r Reason) bool { return r == OtherWriterAttached || r == OtherWriterDetaching }

// Reasons lists every Reason, for metrics that must have a series for each.
func Reasons() []Reason { return append([]Reason{Settled}, exits.Reasons()...) }

// AnswerTimeout is how long an attacher may stay silent before people are told: the
// two minutes that upstream waits for it (k/k pkg/volume/csi csiTimeout).
const AnswerTimeout = 2 * time.Minute
