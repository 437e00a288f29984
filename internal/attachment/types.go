package attachment

import (
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
)

// VolumeKey identifies one volume of one driver across all nodes and all PersistentVolumes that share its handle. It is the key of
// the work queue.
type VolumeKey struct {
	Driver string // CSI driver name, VolumeAttachment.spec.attacher
	Handle string // CSI volume handle; it may contain any character
}

// NodeName is the name of a Node object.
type NodeName string

// Knowledge is [decision.Knowledge].
type Knowledge = decision.Knowledge

// The values of Knowledge.
const (
	Unknown = decision.Unknown
	No      = decision.No
	Yes     = decision.Yes
)

// Desired is what pods, claims and the driver ask for.
type Desired struct {
	// Shared is whether the volume may be attached to several nodes. Anything but Yes, Unknown included, makes it exclusive.
	Shared Knowledge
	// SharedAttached is the same without what the pods ask for, which may change: Yes keeps what is attached and wanted.
	SharedAttached Knowledge
	// Wants has one entry per node with a pod that needs the volume there. It is empty for a driver that needs no attach.
	Wants []Want
	// Orphan is set when the volume of a VolumeAttachment cannot be determined. It is only detached, never reported or withdrawn.
	Orphan bool
}

// Want says that pods of one node need the volume.
type Want struct {
	Node NodeName
	// PersistentVolume is named in the VolumeAttachment. If two of them share the handle, it is the one that the oldest pod uses.
	PersistentVolume string
	// Since is when the oldest of the pods was created. Of several nodes that want an exclusive volume, the one that has waited
	// longest gets it.
	Since time.Time
}

// Observed is a snapshot of what is known about the volume.
type Observed struct {
	// Volume is the one that the snapshot is of; empty if that is unknown.
	Volume VolumeKey
	// Attachments holds every VolumeAttachment of the volume, whichever client created it.
	Attachments []Attachment
	// Nodes holds every node that wants, holds, reports or uses the volume.
	Nodes map[NodeName]Node
	// Pending holds the creates of VolumeAttachments without an answer, which may still be carried out.
	Pending []Pending
	// Newest, if later than the time of the decision, is the date of a new request: another clock that is ahead may be right, and
	// be the next leader's.
	Newest time.Time
}

// Pending is a create without an answer. It may still be carried out before Until.
type Pending struct {
	Node  NodeName
	Until time.Time
}

// Ref binds a write to the object that was decided on (S6).
type Ref struct {
	Name            string
	UID             string
	ResourceVersion string
}

// InDoubt is the recorded UID of a Node if the machine may have mounted the volume before what is recorded. It is no Node's.
const InDoubt = "in-doubt"

// Machine identifies one run of one machine. An empty field is unknown.
type Machine struct {
	NodeUID    string // metadata.uid of the Node object
	BootID     string // status.nodeInfo.bootID, new at each boot
	SystemUUID string // status.nodeInfo.systemUUID, the hardware's or VM's own
	ProviderID string // spec.providerID, the cloud's name of the machine
}

// Shared says which identities of a Node's machine another Node carries at the same time.
type Shared struct{ BootID, SystemUUID, ProviderID bool }

// Attachment is one VolumeAttachment. Its existence means that the volume may be attached to the node; only its absence means that
// it is not.
type Attachment struct {
	Ref
	Node NodeName
	// PersistentVolume is the source's name, empty for an inline source.
	PersistentVolume string
	// Recreated is set when the node was given the volume by an earlier object, which another client removed: the volume may be in
	// use although this one is not confirmed yet.
	Recreated bool
	// VolumeGone is set when that PersistentVolume is known not to exist.
	VolumeGone bool
	// Implied is set when there is no VolumeAttachment: another client removed the object while the node had the volume.
	Implied bool
	// InDoubt is set when it is unknown under which Node object the volume was attached. Machine is what was found later.
	InDoubt bool
	// Computed is set when the name is the one that kubelet computes for this volume and node. Others were created by another
	// client: they block, but are never changed.
	Computed bool
	// Finalized is set when the attacher's finalizer is on the object: it is removed only after the driver confirmed the unpublish (S5).
	Finalized bool
	// Confirmed is Yes if status.attached is set, or if the volume has no attacher because the node connects it by itself, else
	// Unknown: until the object is gone the volume may be attached.
	Confirmed Knowledge
	// Deleting is set when a delete was accepted.
	Deleting bool
	// DeletingSince is the time of the delete; zero if unknown.
	DeletingSince time.Time
	// DeleteMayBeUnderway is set when a delete of exactly this version may have been sent whose outcome is unknown, by an earlier
	// leader or by this one without a response.
	DeleteMayBeUnderway bool
	// Created is the creation time, used to choose among several.
	Created time.Time
	// DetachRequested is when a detach first had to wait; zero if none waits.
	DetachRequested time.Time
	// NodeID is the CSI node ID that the attacher recorded; empty if it has not, or there is none.
	NodeID string
	// SameMachineAs is the present CSI node ID of the node that was recorded as that of the same machine; empty for none.
	SameMachineAs string
	// Machine is what the node was when the attachment was created or last verified; fields that were not recorded are empty.
	Machine Machine
	// AttachError and DetachError are the driver's messages in the status.
	AttachError string
	DetachError string
	// Pending says, as the attacher does, which call has had no answer and since when, or that none was sent; empty for none. It counts until
	// PendingUntil, unless that is later than MaxPending from now.
	Pending      string
	PendingUntil time.Time
	// Elsewhere is another node that the driver lists the volume at, as its attacher says, and ElsewhereSeen when it said so last; empty for none. Nothing
	// is decided by it: an event says it.
	Elsewhere     string
	ElsewhereSeen time.Time
}

// MaxPending is how long in the future the end of a pending call may be. Charts of drivers allow ten minutes for a call.
const MaxPending = time.Hour

// Node is what is known about one node with regard to the volume.
type Node struct {
	// Exists is No when the Node object is gone, Unknown when it could not be read.
	Exists Knowledge
	// Machine identifies the Node object and the machine behind it. For a deleted Node it is that of the last known version, empty
	// if there is none.
	Machine Machine
	// NodeID is the CSI node ID that the volume's driver has for the node now; empty if that is unknown, or there is none.
	NodeID string
	// Shared says which identities of Machine another Node carries too.
	Shared Shared
	// Created is the creation time of that Node object.
	Created time.Time
	// Managed is set when the controller attaches and detaches for this node.
	Managed bool
	// Reported is set when status.volumesAttached lists the volume.
	Reported bool
	// InUse is whether status.volumesInUse lists the volume. For a deleted Node it is that of the last known version, Unknown if
	// there is none.
	InUse Knowledge
	// QuietSince and QuietUntil are the longest time up to the last check in which the kubelet of this Node object was Ready, renewed its
	// lease all the time, and did not list the volume; zero before the first check.
	QuietSince, QuietUntil time.Time
	// NextKubeletCheck is when to check the kubelet again; zero for now.
	NextKubeletCheck time.Time
	// Healthy is Yes when the node's condition Ready is True, and No otherwise, also without the condition or the Node: upstream's
	// rule for the unmount timeout. Unknown when the Node could not be read.
	Healthy Knowledge
	// DetachRequested is the time of a detach that waits, as stored on the Node for an Implied attachment; zero for none. Other
	// attachments store it themselves.
	DetachRequested time.Time
	// OutOfService is set when the node carries the out-of-service taint.
	OutOfService bool
	// TaintedByFence is set when a fence of belay set that taint, and no other client.
	TaintedByFence bool
	// Isolated is set while a fence of belay keeps new pods from the node.
	Isolated bool
	// Proofs say that a boot of the node has ended, or that some volumes can be taken from it. Each counts for exactly its boot: several machines may
	// have had the name.
	Proofs []fencing.Proof
	// Lives say that a boot runs.
	Lives []fencing.Life
	// Checked is set when the API server itself, not a cache, returned this state or an older one in this turn (S3).
	Checked bool
	// WriteMayBeUnderway is set when a report that is bound to exactly this version of the Node may have been sent whose outcome is
	// unknown, by an earlier leader or by this one without a response.
	WriteMayBeUnderway bool
}
