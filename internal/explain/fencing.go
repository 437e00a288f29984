package explain

import (
	"fmt"
	"strings"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
)

// NotFenced is why a node that is silent is not fenced.
func NotFenced(r decision.Reason) string {
	return "The node has not renewed its lease for too long, and is not fenced: " + notFenced[r]
}

var notFenced = map[decision.Reason]string{
	fencing.NodeOptedOut:         "the annotation fencing.belay.dev/opt-out, or the label remediation.medik8s.io/exclude-from-remediation, keeps it from being fenced",
	fencing.NodeUnderMaintenance: "its condition MaintenanceInProgress is True",
	fencing.ControlPlaneNode:     "it runs the control plane, or belay-controller itself",
	fencing.NodeIdentityUnknown:  "its status has no bootID or no systemUUID, so no evidence can be matched with it",
	fencing.NoSecondSignal:       "nothing but the lease says that it is lost; its condition Ready is still True",
	fencing.SignOfLife:           "its kubelet's port answers, its machine refuses connections, or is being stopped on purpose, so its machine may run",
	fencing.NothingToLose:        "it has no volume that another node could want, so nothing waits for its machine to be switched off",
	fencing.NodeLeaseHeld:        "another component, such as another remediator, holds the lease by which such components agree on who works on a node",
	fencing.DetectorCutOff:       "no node at all is heard, so the fault is more likely between belay-controller and the nodes",
	fencing.TooManySilent:        "too many nodes are silent at once, or were fenced and are not back yet: this may be a fault of the network, and the machines may run",
	fencing.ZoneSilent:           "too many nodes of its zone are silent at once: the zone may be cut off and run on",
	fencing.TooManyFenced:        "as many nodes were fenced lately as the brake allows",
	fencing.TooManyInFlight:      "as many nodes are being fenced as the brake allows",
}

// IsNotFenced reports whether a reason is why recovery does not fence a silent node.
func IsNotFenced(r decision.Reason) bool {
	_, ok := notFenced[r]
	return ok
}

// NotFencedBecause is why recovery does not fence a node, as a part of a sentence.
func NotFencedBecause(r decision.Reason) string { return notFenced[r] }

// AndNotFenced ends the summary about a node that is lost.
func AndNotFenced(r decision.Reason) string {
	return ", and recovery does not fence it: " + notFenced[r]
}

// FenceSuspected is the event of a new NodeFence.
func FenceSuspected(silent time.Duration) string {
	return fmt.Sprintf("The node has not renewed its lease for %v: belay looks for proof that its machine is off", silent.Round(100*time.Millisecond))
}

// FenceRemediation is the event of a new NodeFence that a BelayRemediation asked for.
const FenceRemediation = "The node is silent, and a BelayRemediation asks for its fence: belay looks for proof that its machine is off"

// FenceNodeDeleted is the event of a new NodeFence for a deleted Node.
const FenceNodeDeleted = "The Node was deleted while volumes are attached to its machine: belay looks for proof that the machine is off"

// WouldFence is the event of a dry run.
const WouldFence = "The node would be fenced now; --recovery-dry-run is set, so nothing is changed"

// FenceContradicted is the event of a fence whose boot was proven to have ended, and lives.
func FenceContradicted() string {
	return "The boot that was proven to have ended renews its lease. " + fenceWaits[fencing.Contradicted].advice
}

// FenceStatementTooLong is the event of a statement that counts for too long.
func FenceStatementTooLong(node string) string {
	return fmt.Sprintf("The statement about the machine is no evidence: it must expire within %d hours after it was written, and not be dated in the future. State it again with kubectl belay fence %s", int(fencing.StatementFor.Hours()), node)
}

// FenceStatementUnguarded is the event of a statement that anyone with the right to write NodeFences may have written.
func FenceStatementUnguarded(node string, why error) string {
	return fmt.Sprintf("The statement about the machine is no evidence: no admission policy shows that its author may confirm: %v. "+
		"Apply the policy again, and then state it again with kubectl belay fence %s", why, node)
}

// LeaveUnfinished is why recovery cannot be removed: fences of these nodes are under way.
func LeaveUnfinished(fences []string) string {
	return "recovery cannot be removed: these NodeFences are not finished: " + strings.Join(fences, ", ") + ". Their nodes would keep the taints, and what the fences hold would stay as it is. " +
		"Start the machine of each, or delete its Node if it will not come back. A fence that has taken nothing yet, or whose release is Manual, ends with `kubectl belay unfence NODE`. " +
		"See docs/recovery/README.md, \"Remove\". Then uninstall again"
}

// LeaveTainted is why recovery cannot be removed: these nodes have taints of recovery, and no NodeFence.
func LeaveTainted(nodes []string) string {
	return "recovery cannot be removed: these Nodes have taints of recovery without a NodeFence that would end: " + strings.Join(nodes, ", ") +
		". Remove them as `" + RunbookCommand(TaintWithoutFence) + "` says. Then uninstall again"
}

// FenceTooLate is the event of a fencer that did not carry out what a fence asked for, because it is too old by the fencer's clock.
func FenceTooLate(now time.Time) string {
	return fmt.Sprintf("The fencer did not ask or command the power switch: what the fence asked for is too old by its clock, which says %s. "+
		"Either the fencer did not run or could not read the node, or its clock is ahead of the actor's: correct the clock. The actor asks again", now.UTC().Format(time.RFC3339))
}

// FenceHeld is the event of a fencer that does not send a command, because the node is not silent as far as it has heard, or its own brake holds.
func FenceHeld(r decision.Reason) string {
	why := notFencedTitles[r]
	if r == fencing.SilenceTooShort {
		why = "The fencer has not heard the node yet, so it does not know that it is silent"
	}
	return fmt.Sprintf("The fencer does not switch the machine off yet (%s): %s. It decides by the leases that it hears itself, and by the commands that it has sent. "+
		"The actor asks again", r, why)
}

// FencePhase is the event of a phase. commanded is set if a command to switch the machine off was stored, and perhaps sent.
func FencePhase(p fencing.Phase, class fencing.Class, commanded bool) string {
	switch p {
	case fencing.Suspected:
		return "The node is silent"
	case fencing.Isolating:
		return "No new pods are scheduled to the node"
	case fencing.Fencing:
		return "The machine of the node is to be switched off, unless it shows a sign of life before that"
	case fencing.Tainting:
		return "Confirming before anything is deleted: " + FenceEvidence(class)
	case fencing.Evicting:
		return "Deleting the pods of the node: " + FenceEvidence(class)
	case fencing.Detaching:
		return "The pods of the node are deleted; its volumes are being detached"
	case fencing.Moved:
		return "No volume is attached to the node any more; its taints stay until its machine has started again"
	case fencing.Releasing:
		return "The node is released: its taints are being removed"
	case fencing.Released:
		return "The node is released"
	case fencing.Cancelled:
		return FenceCancelled("", commanded)
	}
	return string(p)
}

// FenceCancelled is the event of a fence that is cancelled. The cause is empty in the record of an earlier version.
func FenceCancelled(cause fencing.Cause, commanded bool) string {
	why := fenceCauses[cause]
	if why == "" {
		why = "the node showed a sign of life, is opted out or under maintenance, or the NodeFence was deleted"
	}
	return "The fence is cancelled: " + why + "; no pod was deleted" + mayBeOff(commanded)
}

// fenceCauses are why a fence is cancelled.
var fenceCauses = map[fencing.Cause]string{
	fencing.CauseOutdated:    "another fence of the same boot has its place",
	fencing.CauseAlive:       "the node showed a sign of life",
	fencing.CauseRestarted:   "its machine has started again",
	fencing.CauseOptedOut:    "the node is opted out",
	fencing.CauseMaintenance: "the node is under maintenance",
	fencing.CauseDeleted:     "the NodeFence was deleted, as kubectl belay unfence does",
	fencing.CauseUnasked:     "no BelayRemediation asks for it any more",
	fencing.CauseNothingLeft: "nothing of the machine is left to release",
}

// FenceOver is the message of the condition Ended. FenceCauseOf returns the cause from it.
func FenceOver(cause fencing.Cause) string {
	if why := fenceCauses[cause]; why != "" {
		return fenceIsOver + ": " + why
	}
	return fenceIsOver
}

const fenceIsOver = "the fence is over"

// FenceCauseOf returns the cause that a message of the condition Ended has, empty for another message.
func FenceCauseOf(message string) fencing.Cause {
	for _, cause := range fencing.Causes() {
		if message == FenceOver(cause) {
			return cause
		}
	}
	return ""
}

// FenceRequested is the event of a phase of a fence that a person has asked for: it names the person where the request begins to be carried out, and where it
// ends.
func FenceRequested(p fencing.Phase, by, reason, text string) string {
	switch p {
	case fencing.Isolating:
		return RequestedBy(by, reason) + ". " + text
	case fencing.Moved:
		return fmt.Sprintf("The power-off that %s asked for is done. %s", by, text)
	case fencing.Cancelled:
		return fmt.Sprintf("The request of %s for a power-off has ended. %s", by, text)
	case fencing.Suspected, fencing.Fencing, fencing.Tainting, fencing.Evicting, fencing.Detaching, fencing.Releasing, fencing.Released:
	}
	return text
}

// RequestedBy says who asked for a power-off.
func RequestedBy(by, reason string) string {
	return fmt.Sprintf("%s asked for the power-off of the machine (%s)", by, reason)
}

// FenceWithoutNode is the event of a phase that a fence enters while there is no Node object.
func FenceWithoutNode(p fencing.Phase, class fencing.Class, f fencing.Fence) string {
	switch {
	case p == fencing.Isolating:
		return "The Node was deleted, so there is nothing to isolate"
	case p == fencing.Fencing && f.NodeDeleted:
		return "The Node was deleted: the power switch of its machine is asked, and the machine is not switched off"
	case p == fencing.Cancelled && !f.Deleting:
		return "The Node was deleted, and nothing of it is left that would have to be moved" + mayBeOff(f.Commanded())
	case p == fencing.Moved:
		return "No volume is attached to the machine of the deleted Node any more"
	}
	return FencePhase(p, class, f.Commanded())
}

// mayBeOff is what is left of a fence that ended after its command.
func mayBeOff(commanded bool) string {
	if !commanded {
		return ""
	}
	return ". A command to switch its machine off was stored, so the machine may be off: recovery starts none, so look whether it runs, and start it"
}

// UpstreamForces is the message of the condition of that name.
const UpstreamForces = "the pods are being deleted, which starts the timer of kube-controller-manager: six minutes later it detaches the volumes by force, also if this fence is contradicted. " +
	"It does not with --disable-force-detach-on-timeout"

// FenceEvidence is what a class of evidence says.
func FenceEvidence(c fencing.Class) string {
	switch c {
	case fencing.PoweredOff:
		return "the power switch of its machine says Off"
	case fencing.StorageFenced:
		return "the storage refuses its machine"
	case fencing.Restarted:
		return "its machine has started again"
	case fencing.Stated:
		return "a person stated that its machine is off"
	}
	return "nothing is proven yet"
}

// Proof is the evidence by which a fence was carried out.
type Proof struct {
	Class fencing.Class
	// By is who gave it: a power switch, a driver or a user. Switch is what that power switch is asked with, Text what it said.
	By, Switch, Text string
	At               time.Time
}

// ProvenBy says by what evidence a machine counted as off, or as restarted.
func ProvenBy(p Proof) string {
	text := "proven by this: " + FenceEvidence(p.Class)
	switch {
	case p.Class == fencing.PoweredOff && p.By != "" && p.Switch != "":
		text += fmt.Sprintf(" (FenceSource %s, %s)", p.By, p.Switch)
	case p.Class == fencing.PoweredOff && p.By != "":
		text += fmt.Sprintf(" (FenceSource %s)", p.By)
	case p.By != "":
		text += " (" + p.By + ")"
	}
	if p.Text != "" && p.Class != fencing.PoweredOff {
		text += ": " + p.Text
	}
	if !p.At.IsZero() {
		text += ", at " + stamp(p.At)
	}
	return text
}

// FenceWait is what a fence waits for, and what a person can do about it.
func FenceWait(r decision.Reason) (missing, advice string) {
	w := fenceWaits[r]
	return w.missing, w.advice
}

// FenceWaitReason is the reason that FenceWait described; empty for the text of another version.
func FenceWaitReason(missing string) decision.Reason {
	for _, r := range fencing.Exits.Reasons() {
		if w := fenceWaits[r]; missing != "" && w.missing == missing {
			return r
		}
	}
	return ""
}

var fenceWaits = map[decision.Reason]struct{ missing, advice string }{
	fencing.NoEvidence: {
		"proof that the machine is off: no power switch is known to be this node's own",
		"Switch the machine off yourself, check that it is off, and state it with kubectl belay fence NODE --confirm-powered-off. " +
			"A FenceSource for the node lets belay do this the next time.",
	},
	fencing.SourceLocked: {
		"a login to the power switch: it refused the credentials as often as allowed",
		"Correct the Secret of the FenceSource, or state that the machine is off with kubectl belay fence NODE --confirm-powered-off.",
	},
	fencing.AwaitingSource: {"the answer of the power switch", ""},
	fencing.SourceSilent: {
		"an answer of the power switch: it did not give the power state when it was last asked",
		"Make the power switch reachable; it is asked again and again. Or check that the machine is off, and state it with kubectl belay fence NODE --confirm-powered-off.",
	},
	fencing.IntentOpen: {"the end of the time in which a command to switch off may still be carried out", ""},
	fencing.NotOff:     {"the power switch to say Off", "Switch the machine off yourself; belay asks the power switch again every second. "},
	fencing.RequestWithdrawn: {
		"the power switch to say Off: the BelayRemediation that asked for the fence has timed out or was deleted, so no command is sent any more",
		"If no other remediator works on the node, end this fence with kubectl belay unfence NODE, and ask for the power-off with kubectl belay fence NODE --power-off; or switch the machine off " +
			"yourself. belay fences the node with its own evidence as soon as its rules allow.",
	},
	fencing.SwitchOffHeld: {
		"the fencer to switch the machine off: it holds the command back, because it hears the node, or too many others are silent or were switched off lately",
		"The event SwitchOffHeld of the node names the cause: look at the other silent nodes. Or switch the machine off yourself; belay asks the power switch again and again.",
	},
	fencing.NodeDeletedMachineOn: {
		"the machine to be off: its Node was deleted, and its power switch says On",
		"Shut the machine down: belay asks the power switch again every ten seconds and then moves the volumes. Or restart its kubelet, which registers the node again. " +
			"belay does not switch off a machine because its Node was deleted.",
	},
	fencing.EarlierMachine: {
		"the end of an earlier machine of the name: its VolumeAttachments are left, and kube-controller-manager would detach its volumes too",
		"Find out whether the earlier machine is off. If it is, state that with kubectl belay fence NODE --machine UUID --confirm-powered-off, if it has a NodeFence, or delete its VolumeAttachments.",
	},
	fencing.Contradicted:       {"an explanation: the boot that was proven to have ended renews its lease", "Find out which machine runs under this name. The machine that the power switch controls may be another one, or the statement that it is off was wrong. Nothing more is deleted."},
	fencing.AwaitingPods:       {"the pods of the node to be gone", "A pod that stays has a finalizer: its owner must remove it."},
	fencing.AwaitingDetach:     {"the volumes of the node to be detached", "kubectl belay explain node/NODE shows why a volume stays."},
	fencing.AwaitingBoot:       {"the machine to start again", "Start the machine, or delete the Node if it will not come back."},
	fencing.AwaitingRelease:    {"a person to release the node", "Delete the NodeFence: its release policy is Manual."},
	fencing.SettlingAfterTaint: {"a minute in which other controllers learn that the taint is gone", ""},
	fencing.SilenceTooShort:    {"the node to be silent for its whole limit, as this process counts it", ""},
	fencing.AwaitingUnmount: {
		"the node to unmount the volumes that may have been taken from it while it was cut off",
		"The node gets pods again a minute after it is back, once all volumes of such drivers that it lists in use are attached to it. If that does not happen, " +
			"remove the pods on it that wait for a volume, or restart the machine.",
	},
	fencing.AwaitingReturn: {
		"the machine to come back, or to be proven off: volumes may have been taken from it, and it may have them mounted",
		"Start the machine. If it will not come back, make sure that it is off, and state it: kubectl belay fence NODE --confirm-powered-off. " +
			"That ends the fence, and moves nothing. A node that is still silent is suspected again after that, unless it has the annotation fencing.belay.dev/opt-out.",
	},
	fencing.NodeUnknown: {"the Node to be read from the API server", ""},
	fencing.NotReadLive: {"the Node to be read from the API server", ""},
}
