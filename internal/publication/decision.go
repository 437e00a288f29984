package publication

import (
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/planted"
)

// Reason is why an attachment waits.
type Reason = decision.Reason

// The reasons.
const (
	// OtherWriterAttached: the volume is exclusive and has another attachment. Or one that needs the volume at the same place, and is to
	// unpublish it, lacks the finalizer.
	OtherWriterAttached Reason = "OtherWriterAttached"
	// CallInFlight: a call for the attachment, or for another one of the same exclusive volume, has not returned.
	CallInFlight Reason = "CallInFlight"
	// BackingOff: the last attempt failed.
	BackingOff Reason = "BackingOff"
	// RequestImpossible: something that a request needs is missing or wrong.
	RequestImpossible Reason = "RequestImpossible"
	// RestoredAttachment: another client than an attacher wrote the recorded node ID, which no node has.
	RestoredAttachment Reason = "RestoredAttachment"
	// DriverBusy: the limit of calls in flight is reached.
	DriverBusy Reason = "DriverBusy"
	// NodeHeldBack: the driver cannot attach more volumes to the node (RESOURCE_EXHAUSTED); one attachment at a time is tried.
	NodeHeldBack Reason = "NodeHeldBack"
	// VolumeHeldBack: the driver is already working on the shared volume (ABORTED); one node at a time is tried.
	VolumeHeldBack Reason = "VolumeHeldBack"
	// DetachRequested: the controller is about to delete the attachment. The wait ends when it does, when it withdraws the request,
	// or withdrawalLimit after the request.
	DetachRequested Reason = "DetachRequested"
	// PublishInDoubt: the driver is known to confirm an unpublish while a publish is pending that it gave no final answer to.
	PublishInDoubt Reason = "PublishInDoubt"
	// DriverGone: the connection to the driver is lost.
	DriverGone Reason = "DriverGone"
	// RecordingFailed: a decision or a result could not be written to the API server.
	RecordingFailed Reason = "RecordingFailed"
	// ShuttingDown: the attacher is shutting down.
	ShuttingDown Reason = "ShuttingDown"
)

// exits names what ends each wait. What it names wakes the key.
var exits = decision.Exits{
	OtherWriterAttached: {By: "the other VolumeAttachment is gone, or has its finalizer again, or a PersistentVolume makes the volume shared"},
	CallInFlight:        {By: "the call returns or times out"},
	BackingOff:          {By: "the back-off ends, the driver confirms another call, or the VolumeAttachment, PersistentVolume or CSINode changes", Timed: true},
	RequestImpossible:   {By: "the VolumeAttachment, PersistentVolume or CSINode changes"},
	RestoredAttachment:  {By: "a person declares the machine gone (kubectl belay declare-gone), or a node has the recorded ID"},
	DriverBusy:          {By: "another call returns or times out"},
	NodeHeldBack:        {By: "the pause after the last RESOURCE_EXHAUSTED ends", Timed: true},
	VolumeHeldBack:      {By: "the pause after the last ABORTED ends", Timed: true},
	DetachRequested:     {By: "the VolumeAttachment is deleted, or the request is withdrawn or a minute old", Timed: true},
	PublishInDoubt:      {By: "the publish can no longer take effect, and the unpublish that follows is confirmed", Timed: true},
	DriverGone:          {By: "the driver is connected again"},
	RecordingFailed:     {By: "the API server accepts the write, which is retried"},
	ShuttingDown:        {By: "the next leader takes over"},
}

// Reasons lists all reasons.
func Reasons() []Reason { return exits.Reasons() }

// Exit returns what ends a wait for this reason.
func Exit(r Reason) string { return exits[r].By }

// Wait is why one attachment waits, and for how long at most.
type Wait struct {
	Attachment string // name
	Reason     Reason
	// Until is when to decide again; zero if only the event that Exit names ends the wait.
	Until time.Time
}

// Decision is what to do now: at most one step per attachment, and why the others wait. Steps are for different attachments and
// independent of each other.
type Decision struct {
	Steps []Step
	Waits []Wait
	// RecheckAt is when to decide again if nothing changes; zero for never.
	RecheckAt time.Time
}

// Wait adds a wait to a decision.
func (d *Decision) Wait(w Wait) {
	d.Waits = append(d.Waits, w)
	d.RecheckAt = decision.Earlier(d.RecheckAt, w.Until)
}

// Step is one thing to do for one attachment. The set is sealed.
type Step interface {
	// Target returns the UID of the attachment that was decided on.
	Target() string
	step()
}

type target struct{ UID string }

// Target returns the UID of the attachment that was decided on.
func (t target) Target() string { return t.UID }
func (target) step()            {}

type (
	// WriteFinalizers stores the finalizer and the node ID on the attachment, and the finalizer on its PersistentVolume, whichever
	// is missing.
	WriteFinalizers struct {
		target
		NodeID     string
		Attachment bool
		Volume     bool
	}
	// Reread reads the attachment at quorum, after a write without an answer.
	Reread struct{ target }
	// CallDriver sends ControllerPublishVolume or ControllerUnpublishVolume.
	CallDriver struct {
		target
		Verb   Verb
		NodeID string
	}
	// AskNodes reads live whether a Node with that CSI node ID lists the volume in use.
	AskNodes struct {
		target
		NodeID string
	}
	// CancelCall abandons the attachment's call in flight: what becomes of it is unknown.
	CancelCall struct{ target }
	// RecordAttached stores attached=true and the publish context.
	RecordAttached struct{ target }
	// RecordDetached stores attached=false, for an attachment that will outlive the finalizer.
	RecordDetached struct{ target }
	// RemoveFinalizer removes the finalizer from the attachment.
	RemoveFinalizer struct{ target }
	// RecordError stores an attach or detach error in the status.
	RecordError struct {
		target
		Verb    Verb
		Message string
		// OfCall: the error, and its code, are those of the last call.
		OfCall bool
	}
	// Forget drops what is known about an attachment that is gone.
	Forget struct{ target }
)

// Policy configures the back-off after failed calls.
type Policy struct {
	RetryStart time.Duration // after the first failure; default 1 s
	RetryMax   time.Duration // upper limit; default 5 min
}

// needed reports whether anything is missing.
func (w WriteFinalizers) needed() bool { return !planted.S10 && (w.Attachment || w.Volume) }
