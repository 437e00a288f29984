package fencing

import (
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
)

// Reasons why a fence waits. Each has an exit in Exits.
const (
	// NoEvidence: the node has no power switch that is known to be its own, and no person said anything.
	NoEvidence decision.Reason = "NoEvidence"
	// SourceLocked: the power switch refused the credentials as often as allowed.
	SourceLocked decision.Reason = "SourceLocked"
	// AwaitingSource: an agent runs.
	AwaitingSource decision.Reason = "AwaitingSource"
	// SourceSilent: an agent runs, and the one before did not learn the power state.
	SourceSilent decision.Reason = "SourceSilent"
	// IntentOpen: a command that an earlier process may have sent may still be carried out.
	IntentOpen decision.Reason = "IntentOpen"
	// NotOff: the command was sent, and the machine is not off.
	NotOff decision.Reason = "NotOff"
	// NodeDeletedMachineOn: the Node was deleted, and its machine is not off. It is not commanded.
	NodeDeletedMachineOn decision.Reason = "NodeDeletedMachineOn"
	// Contradicted: the boot that was proven to have ended shows a sign of life.
	Contradicted decision.Reason = "Contradicted"
	// AwaitingPods: pods of the node are being deleted.
	AwaitingPods decision.Reason = "AwaitingPods"
	// AwaitingDetach: VolumeAttachments of the boot are being deleted.
	AwaitingDetach decision.Reason = "AwaitingDetach"
	// AwaitingBoot: the machine has not come back yet.
	AwaitingBoot decision.Reason = "AwaitingBoot"
	// AwaitingRelease: a person is to release the node.
	AwaitingRelease decision.Reason = "AwaitingRelease"
	// SettlingAfterTaint: other controllers may act on the taint for a while after it was removed.
	SettlingAfterTaint decision.Reason = "SettlingAfterTaint"
	// AwaitingUnmount: the node lives, and may have volumes mounted that were taken from it.
	AwaitingUnmount decision.Reason = "AwaitingUnmount"
	// NodeUnknown: the Node could not be read.
	NodeUnknown decision.Reason = "NodeUnknown"
)

// Exits has what ends each wait.
var Exits = decision.Exits{
	NoEvidence:           {By: "a power switch is configured or reachable, or a person makes a statement"},
	SourceLocked:         {By: "the Secret changes"},
	AwaitingSource:       {By: "the agent ends", Timed: true},
	SourceSilent:         {By: "the power switch answers, or a person makes a statement", Timed: true},
	IntentOpen:           {By: "the time of the intent", Timed: true},
	NotOff:               {By: "the switch is asked again", Timed: true},
	NodeDeletedMachineOn: {By: "the switch says Off when it is asked again, or the node registers again", Timed: true},
	Contradicted:         {By: "the node shows another boot, or a person decides"},
	AwaitingPods:         {By: "a pod is gone"},
	AwaitingDetach:       {By: "a VolumeAttachment is gone"},
	AwaitingBoot:         {By: "the Node changes"},
	AwaitingRelease:      {By: "the NodeFence changes"},
	SettlingAfterTaint:   {By: "the time after the untaint", Timed: true},
	SilenceTooShort:      {By: "the node renews its lease, or is silent for its limit", Timed: true},
	AwaitingUnmount:      {By: "the Node lists no volume in use that is not attached to it, or shows another boot", Timed: true},
	NodeUnknown:          {By: "the Node is read"},
	NotReadLive:          {By: "the Node is read"},
}

// notSuspected are the reasons for which a node is not suspected.
var notSuspected = []decision.Reason{
	NodeAlive, SilenceTooShort, NodeOptedOut, NodeUnderMaintenance, ControlPlaneNode, NodeIdentityUnknown, NoSecondSignal, SignOfLife, NotReadLive,
	DetectorCutOff, TooManySilent, ZoneSilent, TooManyFenced, TooManyInFlight,
}

// Reasons lists all reasons: why a node is not suspected, and why a fence waits.
func Reasons() []decision.Reason {
	all := append(append([]decision.Reason{Settled}, notSuspected...), Exits.Reasons()...)
	slices.Sort(all)
	return slices.Compact(all)
}

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

// ProveVolumes stores that volumes of the boot may be taken one by one from now on.
type ProveVolumes struct{ Volumes []Volume }

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
func (ProveVolumes) step()     {}
func (List) step()             {}
func (Finish) step()           {}
