package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/planted"
)

// Key identifies what is decided together, and so the unit of work of one worker. An exclusive volume is decided over all nodes
// (only Volume is set), because the one-writer rule spans nodes. A shared volume is decided per place, so that one hung node does not
// block the others (k/k#73972). An attachment whose volume is unknown is decided alone: no call can be made for it.
type Key struct {
	Volume     string // the CSI volume handle; empty if it is unknown
	NodeID     string // the CSI node ID, for a shared volume
	Node       string // the node, for a shared volume, only if NodeID is unknown
	Attachment string // the VolumeAttachment's name, only if Volume is unknown
}

// Exclusive reports whether the key is that of a whole volume.
func (k Key) Exclusive() bool { return k.Volume != "" && k.NodeID == "" && k.Node == "" }

// Shared reports whether the key is that of one place of a volume.
func (k Key) Shared() bool { return k.NodeID != "" || k.Node != "" }

// Observed is a snapshot of everything that a decision about a key depends on.
type Observed struct {
	// Exclusive: the volume may be published to one node only. Unknown counts as exclusive.
	Exclusive bool
	// Attachments holds every VolumeAttachment of the key, whichever client created it, and those Beside it.
	Attachments []Attachment
	// Draining: the attacher is shutting down. Results are still recorded, but nothing new begins.
	Draining bool
}

// Attachment is one VolumeAttachment and what it depends on. Each field is the newest known value, from the watch or from a
// response.
type Attachment struct {
	UID     string
	Name    string
	Node    string
	Created time.Time

	// Beside: it is decided on with another key, and may need the volume at a place of this one.
	Beside bool
	// Gone: the object no longer exists although a call for it was not undone, because another client removed the finalizer. Only
	// Call is valid.
	Gone bool
	// Released: it has gone while a write of an earlier process could still be carried out. That one removes the finalizer only after the driver has
	// confirmed the unpublish (S5), or a person has declared the machine gone.
	Released bool

	Deleting  bool      // metadata.deletionTimestamp is set
	DeletedAt time.Time // that time, by the API server's clock
	// DetachRequested is when the controller announced that it is about to delete the attachment; zero if it has not.
	DetachRequested time.Time
	Attached        bool // status.attached
	Finalizer       bool // the attacher's finalizer is stored on the object of this UID
	OtherFinalizers bool // the object will outlive the attacher's finalizer

	// Untouched: this process stored the finalizer, on an attachment that had neither a finalizer nor a node ID, and has sent no
	// call for it. So the driver was never asked to publish for it.
	Untouched bool
	// UnconfirmedWrite: a WriteFinalizers got no answer, so Finalizer and RecordedNodeID may be outdated.
	UnconfirmedWrite bool

	// RecordedNodeID is the CSI node ID stored on the attachment: the one that the driver was, or may have been, asked to publish
	// to.
	RecordedNodeID string
	// DeclaredGone is the recorded node ID if a person declared that machine, and the attachment to it, gone; empty otherwise.
	DeclaredGone string
	// Restored is why no call is sent for the attachment: another client than an attacher wrote the recorded node ID, and no node has it. The
	// attachment may be another cluster's, from a backup, and the volume in use there. Empty otherwise.
	Restored string
	// VolumeUnrecorded: the attachment does not identify the volume, or the Secret, of the next publish.
	VolumeUnrecorded bool
	// NodeID is the node's present CSI node ID; empty if unknown.
	NodeID string
	// SameMachine is the CSI node ID by which the driver knew the machine of RecordedNodeID later, as the controller recorded it;
	// empty if it recorded none.
	SameMachine string
	// VolumeProtected: the attacher's finalizer is stored on the PersistentVolume, or there is none (inline volumes).
	VolumeProtected bool
	// VolumeUnprotected: the attacher's finalizer is missing on a PersistentVolume that could have it. Both are false if that is
	// unknown.
	VolumeUnprotected bool

	// PublishProblem and UnpublishProblem are why no request can be made; empty if one can.
	PublishProblem   string
	UnpublishProblem string

	// AttachError and DetachError are the messages stored in the status.
	AttachError string
	DetachError string

	// Drift is the confirmed drift of the driver's list. It stays until the driver confirmed the repair and that is recorded.
	Drift Drift
	// DriftNodeID is the node that still has the volume, if Drift is Abandoned or HalfPublished.
	DriftNodeID string
	// Held is why the volume is not unpublished from a node that the driver lists without an attachment; empty if that is not so.
	Held string

	// UnpublishedFrom are the node IDs of which the driver confirmed an unpublish of the volume since it last confirmed a publish.
	UnpublishedFrom []string
	// Asked is what Nodes answered, by node ID.
	Asked map[string]NodesAnswer

	// Inputs changes when anything changes that an attempt depends on. A failed call is retried at once when it differs.
	Inputs string

	// Call is the last call to the driver for this UID that this process knows of.
	Call Call
}

// NodesAnswer is whether a Node with a CSI node ID listed the volume in use when it was asked.
type NodesAnswer struct {
	InUse decision.Knowledge
	At    time.Time
}

// Verb is the kind of a call to the driver.
type Verb int8

const (
	// NoCall is the zero value: this process has not called the driver.
	NoCall Verb = iota
	// Publish is ControllerPublishVolume.
	Publish
	// Unpublish is ControllerUnpublishVolume.
	Unpublish
)

// String returns the name of the call in the CSI specification.
func (v Verb) String() string {
	switch v {
	case Publish:
		return "ControllerPublishVolume"
	case Unpublish:
		return "ControllerUnpublishVolume"
	default:
		return "None"
	}
}

// boundNodeID is the node ID that the volume is, or may be, published to.
func (a Attachment) boundNodeID() string {
	if a.Gone {
		return a.Call.NodeID
	}
	if a.RecordedNodeID != "" {
		return a.RecordedNodeID
	}
	return a.NodeID
}

// Elsewhere reports whether the step unpublishes a node ID that is not the attachment's.
func (a Attachment) Elsewhere(step CallDriver) bool {
	return step.Verb == Unpublish && step.NodeID != a.boundNodeID()
}

// publishedTo returns the node IDs that the volume may be published to for this attachment: those that this process called for and
// the recorded one, unless the driver confirmed an unpublish and no later call was sent.
func (a Attachment) publishedTo() []string {
	ids := a.Call.publishedTo()
	if id := a.boundNodeID(); !a.Gone && !slices.Contains(ids, id) {
		ids = append([]string{id}, ids...)
	}
	return slices.DeleteFunc(ids, func(id string) bool { return a.unpublishedFrom(id) || a.overwritten(id) })
}

// overwritten reports whether another process has recorded another node ID instead of one that the driver does not know, and that this process only
// unpublished because it was recorded. A record is bound to the version that it replaces, and nothing replaces that of a node ID at which the volume
// may be published (staleNodeIDs): so it was not there.
func (a Attachment) overwritten(nodeID string) bool {
	return !a.Gone && a.RecordedNodeID != "" && nodeID != a.RecordedNodeID && a.Call.at(nodeID).OnRecord && a.Call.unknownAt(nodeID)
}

// unpublishedFrom reports whether the driver confirmed that the volume is not published at the node ID: it answered OK to an
// unpublish of it, or it no longer knows the recorded ID and answered OK to an unpublish of the one by which it knows the same machine.
func (a Attachment) unpublishedFrom(nodeID string) bool {
	return a.Call.unpublishedFrom(nodeID) ||
		nodeID == a.RecordedNodeID && a.SameMachine != "" && a.Call.unknownAt(nodeID) && a.Call.unpublishedFrom(a.SameMachine)
}

// ConfirmedUnpublished reports whether the driver confirmed that the volume is not published at the recorded node ID.
func (a Attachment) ConfirmedUnpublished() bool { return a.unpublishedFrom(a.RecordedNodeID) }

// unpublished: the driver confirmed that the volume is published nowhere for this attachment.
func (a Attachment) unpublished() bool {
	if planted.S5 && a.Call.Verb == Unpublish && !a.Call.InFlight {
		return true
	}
	return len(a.publishedTo()) == 0
}

// mayBePublished: the volume may be published for this attachment. The finalizer is stored before the first call (S10), so it
// stands for the calls of earlier processes.
func (a Attachment) mayBePublished() bool {
	if a.Call.InFlight || a.Attached || a.UnconfirmedWrite {
		return true
	}
	if slices.ContainsFunc(a.Call.publishedTo(), func(id string) bool { return !a.unpublishedFrom(id) }) { // also if another client removed the finalizer since
		return true
	}
	return (a.Finalizer && !a.Untouched || a.Gone) && !a.unpublished()
}
