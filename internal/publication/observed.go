package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/planted"
)

// Key names what is decided about in one go, and so what one worker holds at a
// time. An exclusive volume is decided over all nodes (Node is empty), because
// the one-writer rule spans nodes. A shared volume is decided per node, so that
// one hung node does not hold up the others (k/k#73972). An attachment whose
// volume is not known is decided alone: nothing can be called for it.
type Key struct {
	Volume     string // the CSI volume handle; empty if it is not known
	Node       string // the node, for a shared volume
	Attachment string // the VolumeAttachment's name, only if Volume is not known
}

// Observed is one snapshot of everything that a decision about a key rests on.
type Observed struct {
	// Exclusive: the volume may be published to one node only. Unknown counts
	// as exclusive.
	Exclusive bool
	// Attachments holds every VolumeAttachment of the key, whoever made it: those
	// of one node for a shared volume.
	Attachments []Attachment
	// Draining: the attacher is shutting down. Results are still recorded, and
	// nothing new is begun.
	Draining bool
}

// Attachment is one VolumeAttachment with what concerns it. Each field is as
// the API server last told, directly or through the watch, whichever is newer.
type Attachment struct {
	UID     string
	Name    string
	Node    string
	Created time.Time

	// Gone: the object is no more, although a call for it was not undone:
	// somebody took our finalizer off by force. Only Call is known of it.
	Gone bool

	Deleting  bool      // metadata.deletionTimestamp is set
	DeletedAt time.Time // which is that time, by the API server's clock
	// DetachRequested is when the controller noted that it is about to delete the
	// attachment; zero if it has not.
	DetachRequested time.Time
	Attached        bool // status.attached
	Finalizer       bool // our finalizer is stored on the object of this UID
	OtherFinalizers bool // the object will outlive our finalizer

	// Untouched: this process stored the finalizer, on an attachment that had neither it nor a
	// node ID, and has sent nothing for it. So nobody ever asked the driver to publish for it.
	Untouched bool
	// UnconfirmedWrite: a WriteFinalizers got no answer, so Finalizer and RecordedNodeID may
	// be older than what is stored.
	UnconfirmedWrite bool

	// RecordedNodeID is the CSI node ID stored on the attachment: the one that
	// the driver was, or may have been, asked to publish to.
	RecordedNodeID string
	// HandleUnrecorded: which volume the attachment is for stands on its PersistentVolume alone.
	HandleUnrecorded bool
	// NodeID is the CSI node ID that the node has now; empty if not known.
	NodeID string
	// VolumeProtected: our finalizer is stored on the PersistentVolume, or there
	// is none (inline volumes).
	VolumeProtected bool
	// VolumeUnprotected: our finalizer is missing on the PersistentVolume, which can
	// take it. Both are false where there is no saying.
	VolumeUnprotected bool

	// PublishProblem and UnpublishProblem say why no request can be made;
	// empty if it can.
	PublishProblem   string
	UnpublishProblem string

	// AttachError and DetachError are the messages stored in the status.
	AttachError string
	DetachError string

	// Drift is what the driver's list says against the attachment, confirmed; it
	// stands until the driver confirmed the call that mends it and that is recorded.
	Drift Drift
	// DriftNodeID is the node that keeps the volume, where Drift is Abandoned.
	DriftNodeID string

	// Inputs changes when anything changes that an attempt depends on; it says
	// nothing else. A failed call is tried again at once when it differs.
	Inputs string

	// Call is the last call to the driver for this UID, as far as this process
	// knows.
	Call Call
}

// Verb is a call to the driver.
type Verb int

const (
	// NoCall is the zero value: this process has called nothing.
	NoCall Verb = iota
	// Publish is ControllerPublishVolume.
	Publish
	// Unpublish is ControllerUnpublishVolume.
	Unpublish
)

// String is the name of the call in the CSI specification, as logs and messages have it.
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

// publishedTo are the node IDs that the volume may be published to for this attachment: those that this process called for,
// and the one that is recorded, unless the driver confirmed an unpublish and nothing was called since.
func (a Attachment) publishedTo() []string {
	ids := a.Call.publishedTo()
	if id := a.boundNodeID(); !a.Gone && !a.Call.unpublishedFrom(id) && !slices.Contains(ids, id) {
		ids = append([]string{id}, ids...)
	}
	return ids
}

// unpublished: the driver confirmed that the volume is published nowhere for this attachment.
func (a Attachment) unpublished() bool {
	if planted.S5 && a.Call.Verb == Unpublish && !a.Call.InFlight {
		return true
	}
	return len(a.publishedTo()) == 0
}

// mayBePublished: nobody can rule out that the volume is published for this
// attachment. Our finalizer is stored before the first call (S10), so its
// presence stands for every call of an earlier process.
func (a Attachment) mayBePublished() bool {
	if a.Call.InFlight || a.Attached || a.UnconfirmedWrite || len(a.Call.publishedTo()) > 0 { // also when somebody took the finalizer off since
		return true
	}
	return (a.Finalizer && !a.Untouched || a.Gone) && !a.unpublished()
}
