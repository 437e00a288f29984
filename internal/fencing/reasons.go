package fencing

import (
	"slices"

	"belay.dev/belay/internal/decision"
)

// Reasons why a node is not suspected, and why a fence waits. Those of waits have an exit in Exits.
const (
	// Settled: there is nothing to do.
	Settled decision.Reason = "Settled"
	// NodeAlive: the node renews its lease.
	NodeAlive decision.Reason = "NodeAlive"
	// SilenceTooShort: the node is silent, and not for long enough.
	SilenceTooShort decision.Reason = "SilenceTooShort"
	// NodeOptedOut: the annotation fencing.belay.dev/opt-out keeps the node from being fenced.
	NodeOptedOut decision.Reason = "NodeOptedOut"
	// NodeUnderMaintenance: its owner declared a maintenance, so silence is expected.
	NodeUnderMaintenance decision.Reason = "NodeUnderMaintenance"
	// ControlPlaneNode: nodes of the control plane, and the node of the detector itself, are never fenced.
	ControlPlaneNode decision.Reason = "ControlPlaneNode"
	// NodeIdentityUnknown: the Node object has no boot ID or no system UUID, which evidence has to match.
	NodeIdentityUnknown decision.Reason = "NodeIdentityUnknown"
	// NoSecondSignal: nothing but the lease says that the node is lost.
	NoSecondSignal decision.Reason = "NoSecondSignal"
	// SignOfLife: something shows that the machine runs with a working network, or its stop was announced.
	SignOfLife decision.Reason = "SignOfLife"
	// NothingToLose: the node has no volume that another node could want.
	NothingToLose decision.Reason = "NothingToLose"
	// NodeLeaseHeld: another component, such as another remediator, holds the lease of the node.
	NodeLeaseHeld decision.Reason = "NodeLeaseHeld"
	// NotReadLive: the API server itself was not asked within the last second.
	NotReadLive decision.Reason = "NotReadLive"
	// DetectorCutOff: no node at all is heard, so the fault is more likely the detector's.
	DetectorCutOff decision.Reason = "DetectorCutOff"
	// TooManySilent: more nodes are silent than the brake allows.
	TooManySilent decision.Reason = "TooManySilent"
	// ZoneSilent: more nodes of the zone are silent than the brake allows: the zone may be cut off and run on.
	ZoneSilent decision.Reason = "ZoneSilent"
	// TooManyFenced: as many nodes were fenced lately as the brake allows.
	TooManyFenced decision.Reason = "TooManyFenced"
	// TooManyInFlight: as many nodes are being fenced as the brake allows.
	TooManyInFlight decision.Reason = "TooManyInFlight"

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
	// RequestWithdrawn: the fence began because a remediation asked for it, and none does any more, so that no command is sent.
	RequestWithdrawn decision.Reason = "RequestWithdrawn"
	// SwitchOffHeld: the command is stored, and the fencer holds it back: it hears the node itself, or its own brakes hold.
	SwitchOffHeld decision.Reason = "SwitchOffHeld"
	// NodeDeletedMachineOn: the Node was deleted, and its machine is not off. It is not commanded.
	NodeDeletedMachineOn decision.Reason = "NodeDeletedMachineOn"
	// EarlierMachine: VolumeAttachments of an earlier machine of the name are left, which the taint might release too.
	EarlierMachine decision.Reason = "EarlierMachine"
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
	// AwaitingReturn: volumes may have been taken from the machine, and the fence is to end, but the machine is still silent.
	AwaitingReturn decision.Reason = "AwaitingReturn"
	// NodeUnknown: the Node could not be read.
	NodeUnknown decision.Reason = "NodeUnknown"
)

// Exits has what ends each wait.
var Exits = decision.Exits{
	NoEvidence:           {By: "a power switch is configured or reachable, or a person makes a statement"},
	SourceLocked:         {By: "the Secret changes"},
	AwaitingSource:       {By: "the agent ends, or the node is Ready and has renewed its lease for five minutes after the last command", Timed: true},
	SourceSilent:         {By: "the power switch answers, a person makes a statement, or the node is Ready and has renewed its lease for five minutes after the last command", Timed: true},
	IntentOpen:           {By: "the time of the intent", Timed: true},
	NotOff:               {By: "the switch is asked again", Timed: true},
	RequestWithdrawn:     {By: "the switch says Off when it is asked again, a remediation asks, or the detector replaces the fence with its own", Timed: true},
	SwitchOffHeld:        {By: "the fencer sends the command, or the switch is asked again", Timed: true},
	NodeDeletedMachineOn: {By: "the switch says Off when it is asked again, or the node registers again", Timed: true},
	EarlierMachine:       {By: "the VolumeAttachments of the earlier machine are deleted, by its own fence or a person", Timed: true},
	Contradicted:         {By: "the node shows another boot, or a person decides"},
	AwaitingPods:         {By: "a pod is gone"},
	AwaitingDetach:       {By: "a VolumeAttachment is gone"},
	AwaitingBoot:         {By: "the Node changes"},
	AwaitingRelease:      {By: "the NodeFence changes"},
	SettlingAfterTaint:   {By: "the time after the untaint", Timed: true},
	SilenceTooShort:      {By: "the node renews its lease, or is silent for its limit", Timed: true},
	AwaitingUnmount:      {By: "the Node lists no volume in use that is not attached to it, or shows another boot", Timed: true},
	AwaitingReturn:       {By: "the node renews its lease or shows another boot, the switch says Off, or a person makes a statement"},
	NodeUnknown:          {By: "the Node is read"},
	NotReadLive:          {By: "the Node is read"},
}

// notSuspected are the reasons for which a node is not suspected.
var notSuspected = []decision.Reason{
	NodeAlive, SilenceTooShort, NodeOptedOut, NodeUnderMaintenance, ControlPlaneNode, NodeIdentityUnknown, NoSecondSignal, SignOfLife, NodeLeaseHeld, NothingToLose, NotReadLive,
	DetectorCutOff, TooManySilent, ZoneSilent, TooManyFenced, TooManyInFlight,
}

// Reasons lists all reasons: why a node is not suspected, and why a fence waits.
func Reasons() []decision.Reason {
	all := append(append([]decision.Reason{Settled}, notSuspected...), Exits.Reasons()...)
	slices.Sort(all)
	return slices.Compact(all)
}
