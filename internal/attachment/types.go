package attachment

import (
	"time"

	"belay.dev/belay/internal/decision"
)

// VolumeKey names one volume of one driver across all nodes and all
// PersistentVolumes that share its handle. It is the key of the work queue.
type VolumeKey struct {
	Driver string // CSI driver name, VolumeAttachment.spec.attacher
	Handle string // CSI volume handle; any character may occur in it
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
	// Shared says whether the volume may be attached to several nodes. Anything but
	// Yes, Unknown included, makes it exclusive.
	Shared Knowledge
	// Wants holds one entry per node with a pod that needs the volume there. It is
	// empty for a driver that needs no attach.
	Wants []Want
	// NoVolumeAttachment is set for a volume that has no VolumeAttachment: Fibre Channel and
	// iSCSI, which the node connects by itself. It is reported, because kubelet mounts
	// nothing else, and kept from a second node like any other: the report is its
	// attachment, and its Attachments are all Implied.
	NoVolumeAttachment bool
	// Orphan is set when the volume of a VolumeAttachment cannot be determined. It is
	// only detached: nothing is reported of it, nothing withdrawn.
	Orphan bool
}

// Want says that pods of one node need the volume.
type Want struct {
	Node NodeName
	// PersistentVolume is named in the VolumeAttachment. Where two of them share
	// the handle it is the one that the oldest pod uses.
	PersistentVolume string
	// Since is when the oldest of the pods was made. Of several nodes that want an
	// exclusive volume the one that has waited longest gets it.
	Since time.Time
}

// Observed is one snapshot of what is known of the volume.
type Observed struct {
	// Attachments holds every VolumeAttachment of the volume, whoever made it.
	Attachments []Attachment
	// Nodes holds every node that wants, holds, reports or uses the volume.
	Nodes map[NodeName]Node
	// Pending holds the creates of VolumeAttachments that went without an answer and may
	// still be carried out.
	Pending []Pending
	// Newest, if later than the time of the decision, is what a request is dated with: a
	// clock that is ahead of ours may be right, and a successor's.
	Newest time.Time
}

// Pending is a create without an answer. Until then it may still be carried out.
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

// Machine tells one run of one machine from another. An empty field is not known.
type Machine struct {
	NodeUID    string // metadata.uid of the Node object
	BootID     string // status.nodeInfo.bootID, new at each boot
	SystemUUID string // status.nodeInfo.systemUUID, the hardware's or VM's own
	ProviderID string // spec.providerID, the cloud's name of the machine
}

// Attachment is one VolumeAttachment. That it exists means that the volume may be
// attached to the node; only its absence means that it is not.
type Attachment struct {
	Ref
	Node NodeName
	// PersistentVolume is the source's name, empty for an inline source.
	PersistentVolume string
	// Recreated is set when the node was given the volume by an earlier object, which another
	// client removed: it may be in use although this one is not confirmed yet.
	Recreated bool
	// VolumeGone is set when that PersistentVolume is known not to exist.
	VolumeGone bool
	// Implied is set when no VolumeAttachment stands behind it: the volume has none
	// (Unattached), or the object was removed while the node held the volume.
	Implied bool
	// Computed is set when the name is the one that kubelet computes for this volume
	// and node. Others were made by somebody else: they count, and are left alone.
	Computed bool
	// Confirmed is Yes when status.attached says so, else Unknown: until the object
	// is gone the volume may be attached.
	Confirmed Knowledge
	// Deleting is set when a delete was accepted.
	Deleting bool
	// DeletingSince is when; zero when that is not known.
	DeletingSince time.Time
	// DeleteMayBeUnderway is set when somebody may have sent a delete of exactly this
	// version whose outcome is not known: a leader before us, or we, without reply.
	DeleteMayBeUnderway bool
	// Created is the creation time, used to choose among several.
	Created time.Time
	// DetachRequested is when a detach first had to wait; zero when none waits.
	DetachRequested time.Time
	// Machine is what the node was when the attachment was made or last vouched for;
	// fields are empty where that was not recorded.
	Machine Machine
	// AttachError and DetachError are the driver's words from the status.
	AttachError string
	DetachError string
}

// Node is what is known of one node with regard to the volume.
type Node struct {
	// Exists is No when the Node object is gone, Unknown when it could not be read.
	Exists Knowledge
	// Machine identifies the Node object and the machine behind it; for a node that is
	// gone, its last version, empty if nobody remembers.
	Machine Machine
	// Created is the creation time of that Node object.
	Created time.Time
	// Managed is set when attach and detach of this node are the controller's.
	Managed bool
	// Reported is set when status.volumesAttached lists the volume.
	Reported bool
	// InUse tells whether status.volumesInUse lists the volume. For a node that is
	// gone it is what its last version said, Unknown if nobody remembers.
	InUse Knowledge
	// ReleasedVolume is set when this Node object listed the volume in use and has taken it off
	// its list since: unlike one that never listed it, it knows what it says.
	ReleasedVolume bool
	// ListSynced is set when the kubelet of this Node object was seen to be Ready and to
	// renew its lease for SyncWindow: by then it has sent a complete list.
	ListSynced bool
	// ListSyncDue is when it will have been, if it goes on like this; zero before the first look.
	ListSyncDue time.Time
	// NextKubeletCheck is when to look at the kubelet next; zero for at once.
	NextKubeletCheck time.Time
	// Healthy is Yes when the node's condition Ready is True, and No otherwise, also
	// where there is no such condition or no Node: upstream's rule for the unmount
	// timeout. Unknown when the Node could not be read.
	Healthy Knowledge
	// DetachRequested is the time of a detach that waits, as stored on the Node for an
	// Implied attachment; zero when none is. Others have it on their Attachment.
	DetachRequested time.Time
	// OutOfService is set when the node carries the out-of-service taint.
	OutOfService bool
	// Checked is set when the API server itself, not a cache, answered in this turn
	// with this state or an older one (S3).
	Checked bool
	// WriteMayBeUnderway is set when somebody may have sent a report that is bound to
	// exactly this version of the Node and whose outcome is not known: a leader before
	// us, or we, without reply.
	WriteMayBeUnderway bool
}
