package fencing

import (
	"time"

	"belay.dev/belay/internal/decision"
)

// Decision is what to do next for one fence.
type Decision struct {
	// Steps are carried out in order. After each that writes, the fence is decided again on what was answered.
	Steps []Step
	// Reason is why the fence waits; Settled if it does not.
	Reason decision.Reason
	// RecheckAt is when the decision will change without an event; zero if it will not.
	RecheckAt time.Time
	// Proof is what is proven about the boot now.
	Proof Proof
	// Life is set while the power switch says that the boot runs.
	Life Life
}

// Step is one of the types below. The actor carries them out: it is the only one that changes Nodes, pods and VolumeAttachments.
type Step interface{ step() }

// Enter stores a phase, and with it the class of evidence and the time of the untaint.
type Enter struct {
	Phase    Phase
	Evidence Class
	// Untainted is stored in Releasing, once the out-of-service taint is gone.
	Untainted time.Time
}

// Command stores an Intent to switch off, with a new nonce. The fencer sends the command (Serve).
type Command struct {
	NotAfter time.Time
	Renewal  string
}

// Ask stores a question, with a new nonce. The fencer asks the source for the power state and the identity of the hardware.
type Ask struct{}

// ReadNode reads Node and lease from the API server itself.
type ReadNode struct{}

// Isolate adds the fence's taint NoSchedule, bound to the UID of the Node.
type Isolate struct{ NodeUID string }

// Taint adds the out-of-service taint with the fence's value, on exactly this version of the Node, with the boot that it is about.
type Taint struct{ NodeUID, Version string }

// Untaint removes the taint out-of-service if it has the fence's value, bound to the version of the Node. A taint with another value is
// never removed.
type Untaint struct{ NodeUID, Version string }

// Unisolate removes the fence's taint NoSchedule.
type Unisolate struct{ NodeUID string }

// DeletePod deletes a pod by its UID, without a grace period.
type DeletePod struct{ Pod Pod }

// DeleteAttachment deletes a VolumeAttachment by UID and resourceVersion.
type DeleteAttachment struct{ Attachment Attachment }

// Unfence records on a VolumeAttachment that no other fence is to begin for the boot.
type Unfence struct{ Attachment Attachment }

// ProveVolumes stores that volumes of the boot may be taken one by one from now on.
type ProveVolumes struct{ Volumes []Volume }

// SilentAgain stores that the node, which had renewed its lease, is silent again since it said Renewal.
type SilentAgain struct{ Renewal string }

// List reads pods and VolumeAttachments of the node from the API server itself.
type List struct{}

// Finish drops the finalizer.
type Finish struct{}

func (Enter) step()            {}
func (Command) step()          {}
func (Ask) step()              {}
func (ReadNode) step()         {}
func (Isolate) step()          {}
func (Taint) step()            {}
func (Untaint) step()          {}
func (Unisolate) step()        {}
func (DeletePod) step()        {}
func (DeleteAttachment) step() {}
func (Unfence) step()          {}
func (ProveVolumes) step()     {}
func (SilentAgain) step()      {}
func (List) step()             {}
func (Finish) step()           {}
