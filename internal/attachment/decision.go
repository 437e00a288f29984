package attachment

import (
	"time"

	"belay.dev/belay/internal/decision"
)

// Decision is what to do next for one volume.
type Decision struct {
	// Steps are executed in order. After a WithdrawReport the volume is decided again in the same turn, with the response of the
	// API server.
	Steps []Step
	// Reason is why the volume is not where it should be: the reason of the first Wait, or Settled.
	Reason Reason
	// RecheckAt is when the decision will change without an event; zero if it will not.
	RecheckAt time.Time
}

// Step is one of Attach, Report, WithdrawReport, Check, CheckKubelet, Detach, ForceDetach, AnnotateAttachment, RecordSameMachine,
// AnnotateNode and Wait. Steps for one node are executed in order, those for different nodes in parallel.
type Step interface{ OnNode() NodeName }

// Attach creates the VolumeAttachment of the volume on a node.
type Attach struct {
	Node             NodeName
	PersistentVolume string
	// Machine is recorded on the new object.
	Machine Machine
}

// Report adds the volume to the node's status.volumesAttached.
type Report struct {
	Node       NodeName
	NodeUID    string
	Attachment Ref // the confirmed attachment that is reported (S9)
	// Repeated is set when the volume was withdrawn, or may have been, and is in use or wanted again: no event for the pods.
	Repeated bool
}

// WithdrawReport removes the volume from the node's status.volumesAttached. The response is the Node as the API server has it, and
// is needed even if there is nothing to withdraw (S3).
type WithdrawReport struct {
	Node    NodeName
	NodeUID string // empty when the Node object is gone
	// NewVersion is set when the Node needs a new version even if there is nothing to withdraw, so that a report in flight fails.
	NewVersion bool
	// Expect is what the decision was based on. The withdrawal is made on a version of the Node with these facts, or not at all:
	// then decide again.
	Expect NodeFacts
}

// NodeFacts are the facts about a node that a withdrawal is based on.
type NodeFacts struct {
	// Reported is whether the volume is reported. A late write of an earlier leader may have reported it since the decision, and a
	// node that lists the volume in use may have mounted it because of that.
	Reported     bool
	InUse        Knowledge
	Healthy      Knowledge
	OutOfService bool
}

// Facts returns the facts about the node.
func (n Node) Facts() NodeFacts { return NodeFacts{n.Reported, n.InUse, n.Healthy, n.OutOfService} }

// Check reads the Node from the API server and decides again (S3, for an orphan, which has no report whose withdrawal would give
// that answer).
type Check struct{ Node NodeName }

// CheckKubelet checks whether the kubelet of a recreated Node is alive, and decides again. It is repeated at Node.NextKubeletCheck.
type CheckKubelet struct {
	Node    NodeName
	NodeUID string
}

// Detach deletes the VolumeAttachment of a volume that is not in use. An Implied attachment, whose Ref is empty, is only forgotten.
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
	// Runs is set when the boot is known to run, and the authority overrules that.
	Runs bool
}

// AnnotateAttachment writes belay's annotations on the VolumeAttachment. Each field is the value to store, except CalledOff.
type AnnotateAttachment struct {
	Node       NodeName
	Attachment Ref
	// DetachRequested is stored, or removed when zero.
	DetachRequested time.Time
	// Machine is stored.
	Machine Machine
	// CalledOff is stored if it is not zero. It only gives the object a new version, so that a delete of the old one fails.
	CalledOff time.Time
}

// RecordSameMachine records on the VolumeAttachment that the node's present CSI node ID is one of the same machine, so that the attacher may
// take the driver's word about that ID for the recorded one. The volume is decided on again.
type RecordSameMachine struct {
	Node       NodeName
	Attachment Ref
	NodeID     string
}

// AnnotateNode stores on the Node since when the detach of an Implied attachment waits, or removes that.
type AnnotateNode struct {
	Node    NodeName
	NodeUID string
	// DetachRequested is stored, or removed when zero.
	DetachRequested time.Time
}

// Wait is a wait for Reason at one node. It ends with the exit of the reason, or at At if that is earlier.
type Wait struct {
	Node       NodeName
	Attachment string // name, empty when there is none
	Reason     Reason
	// Wanted distinguishes a volume that pods wait for from one that waits to be detached.
	Wanted bool
	// Detail is the driver's message, for AttachFailed and DetachFailed, and the sign of life, for NodeStillRuns.
	Detail string
	// Unconfirmed is when an attach was requested that was never confirmed and by which the volume may be in use. Detail is its
	// error, if it failed.
	Unconfirmed time.Time
	// Since is when the wait began; zero if unknown.
	Since time.Time
	// At is when the wait ends without an event: the policy Forces then detaches the volume, or the reason changes. Zero if only an
	// event can end it.
	At time.Time
	// Forces is the policy that applies at At, nil for none. Without At it applies, or its timeout begins, when no pods want the
	// volume at the node any more.
	Forces Authority
	// Overdue is when the unmount timeout ends, whether or not the node is Ready. Nothing is forced while the node is Ready; after
	// Overdue the volume is detached as soon as it is not.
	Overdue time.Time
	// Recovery is what recovery does for the node.
	Recovery Recovery
	// Blockers is what keeps an exclusive volume from this node.
	Blockers []Blocker
}

// OnNode returns the step's node.
func (s Attach) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s Report) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s WithdrawReport) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s Check) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s CheckKubelet) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s Detach) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s ForceDetach) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s AnnotateAttachment) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s RecordSameMachine) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s AnnotateNode) OnNode() NodeName { return s.Node }

// OnNode returns the step's node.
func (s Wait) OnNode() NodeName { return s.Node }

// Blocker is evidence that the volume is, or may be, at a node.
type Blocker struct {
	Node NodeName
	Kind BlockerKind
	// Cause is what the volume waits for at that node. Its Reason is empty when the volume stays there; Since is then when it was
	// attached.
	Cause Cause
	// Ready is the node's health, where that decides how the volume leaves the node.
	Ready Knowledge
}

// Cause is why the volume is still at another node: the fields of the Wait for that node.
type Cause struct {
	Reason      Reason
	Attachment  string
	Detail      string
	Unconfirmed time.Time
	Since       time.Time
	At          time.Time
	Forces      Authority
	Overdue     time.Time
	Recovery    Recovery
}

// Recovery is what recovery does for a node that does not work, as far as that is known here.
type Recovery string

// What recovery does.
const (
	// FenceUnderWay: a fence isolates the node.
	FenceUnderWay Recovery = "FenceUnderWay"
	// FenceExpected: recovery acts in this process, and has not begun to fence the node. It may have reported why it does not.
	FenceExpected Recovery = "FenceExpected"
)

// Cause returns the fields that explain the wait to another node.
func (s Wait) Cause() Cause {
	return Cause{
		Reason: s.Reason, Attachment: s.Attachment, Detail: s.Detail, Unconfirmed: s.Unconfirmed,
		Since: s.Since, At: s.At, Forces: s.Forces, Overdue: s.Overdue, Recovery: s.Recovery,
	}
}

// BlockerKind is the kind of evidence.
type BlockerKind string

// The kinds of evidence that block an exclusive volume (S1).
const (
	ByAttachment        BlockerKind = "VolumeAttachment"             // an object exists
	ByDeletion          BlockerKind = "DetachUnderway"               // an object exists and is being deleted
	ByUse               BlockerKind = "VolumesInUse"                 // a node was given the volume, and no object shows it
	ByNewAttachment     BlockerKind = "AttachedElsewhere"            // another node is given the volume in this decision
	ByCreate            BlockerKind = "CreateUnanswered"             // a VolumeAttachment may still be created
	ByForeignAttachment BlockerKind = BlockerKind(ForeignAttachment) // an object under a name that belay does not use
)

// Reason is why a volume waits.
type Reason = decision.Reason

const (
	// Settled: nothing waits.
	Settled Reason = "Settled"
	// Attaching: the attacher has not confirmed yet.
	Attaching Reason = "Attaching"
	// AttachUnanswered: the attacher has not confirmed within AnswerTimeout.
	AttachUnanswered Reason = "AttachUnanswered"
	// AttachFailed: the driver refused; the attacher retries.
	AttachFailed Reason = "AttachFailed"
	// OtherWriterAttached: the volume is exclusive, and is or may be at another node.
	OtherWriterAttached Reason = "OtherWriterAttached"
	// OtherWriterDetaching: the same, but it is being detached there.
	OtherWriterDetaching Reason = "OtherWriterDetaching"
	// ForeignAttachment: an attachment exists under a name that belay does not use.
	ForeignAttachment Reason = "ForeignAttachment"
	// Detaching: the attacher has not confirmed the detach yet.
	Detaching Reason = "Detaching"
	// DetachUnanswered: the attacher has not confirmed the detach within AnswerTimeout.
	DetachUnanswered Reason = "DetachUnanswered"
	// DetachFailed: the driver refused to detach; the attacher retries.
	DetachFailed Reason = "DetachFailed"
	// StillInUse: the node lists the volume in use.
	StillInUse Reason = "StillInUse"
	// OutOfServiceNodeReady: the node has the out-of-service taint, but is Ready and lists the volume in use: the taint is not
	// trusted.
	OutOfServiceNodeReady Reason = "OutOfServiceNodeReady"
	// NodeGone: the Node object is gone, and the volume may be in use.
	NodeGone Reason = "NodeGone"
	// NodeReturned: the Node object was recreated for a machine that may not have been restarted, and has not shown yet whether it
	// uses the volume.
	NodeReturned Reason = "NodeReturned"
	// NodeReplaced: the Node object represents another machine than the one that the volume was attached to, which cannot be asked.
	NodeReplaced Reason = "NodeReplaced"
	// NodeStillRuns: a policy forces the detach, and recovery knows that the boot which may use the volume runs.
	NodeStillRuns Reason = "NodeStillRuns"
	// NodeUnknown: the Node could not be read.
	NodeUnknown Reason = "NodeUnknown"
	// NodeNotManaged: the node's kubelet attaches and detaches by itself.
	NodeNotManaged Reason = "NodeNotManaged"
	// NodeIsolated: recovery isolates the node, which lists the volume in use from before it was taken from it.
	NodeIsolated Reason = "NodeIsolated"
)

var (
	attachmentChanges = decision.Exit{By: "a VolumeAttachment of the volume changes or is removed"}
	nodeChanges       = decision.Exit{By: "the Node object comes, goes, or changes its lists, its health, its taints or its machine"}
	// holderReleases is one of the two above for another node, or the timeout of a blocker.
	holderReleases = decision.Exit{By: "the volume is released elsewhere", Timed: true}
	lifeEnds       = decision.Exit{By: "the machine is proven to be off, or there is no sign of life any more", Timed: true}
)

// exits names what ends each wait. A reason without an exit cannot be waited for.
var exits = decision.Exits{
	Attaching: attachmentChanges, AttachUnanswered: attachmentChanges, AttachFailed: attachmentChanges,
	Detaching: attachmentChanges, DetachUnanswered: attachmentChanges, DetachFailed: attachmentChanges,
	ForeignAttachment: attachmentChanges,
	StillInUse:        nodeChanges, OutOfServiceNodeReady: nodeChanges,
	NodeGone: nodeChanges, NodeReturned: nodeChanges, NodeReplaced: nodeChanges, NodeUnknown: nodeChanges, NodeNotManaged: nodeChanges, NodeIsolated: nodeChanges,
	NodeStillRuns:       lifeEnds,
	OtherWriterAttached: holderReleases, OtherWriterDetaching: holderReleases,
}

// ForHolder reports whether a wait for this reason ends when the volume is released at another node.
func ForHolder(r Reason) bool { return r == OtherWriterAttached || r == OtherWriterDetaching }

// Reasons lists all reasons, for metrics that must have a series for each.
func Reasons() []Reason { return append([]Reason{Settled}, exits.Reasons()...) }

// lifeRecheck is when a detach that is held because the boot runs is decided again: that a sign of life is over is no event.
const lifeRecheck = 5 * time.Second

// AnswerTimeout is how long an attacher may take to answer before it is reported: the two minutes that upstream waits for it (k/k
// pkg/volume/csi csiTimeout).
const AnswerTimeout = 2 * time.Minute
