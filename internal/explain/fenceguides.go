package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
)

func init() {
	for r, title := range notFencedTitles {
		guides[r] = Guide{
			Title: title, Page: pageNotFenced, Event: string(r),
			Summary: func(s Situation) string {
				return fmt.Sprintf("recovery does not fence node %s: %s", s.Node, notFenced[r])
			},
			Next: func(s Situation) []Step { return append(notFencedNext(r, s.Node), evidenceOf(s.Node)) },
		}
	}
	maps.Copy(guides, lookingGuides)
	maps.Copy(guides, sourceGuides)
	for r, of := range fenceTitles {
		guides[r] = Guide{
			Title: of.title, Page: of.page, Verdict: of.verdict, Silence: inPhase,
			Summary: func(s Situation) string { return FenceSummary(r, s) },
			Next:    func(s Situation) []Step { return FenceNext(r, s.Node) },
		}
	}
	for _, r := range []decision.Reason{fencing.Contradicted, fencing.SwitchOffHeld} { // the two waits that have an event of their own
		g := guides[r]
		g.Event, g.Silence = string(r), ""
		guides[r] = g
	}
}

// notFencedTitles are the reasons for which a silent node is not fenced.
var notFencedTitles = map[decision.Reason]string{
	fencing.NodeOptedOut:         "An annotation or a label keeps the node from being fenced",
	fencing.NodeUnderMaintenance: "The owner of the node has declared a maintenance",
	fencing.ControlPlaneNode:     "Nodes of the control plane are never fenced",
	fencing.NodeIdentityUnknown:  "The Node has no boot ID or no system UUID",
	fencing.NoSecondSignal:       "Only the lease says that the node is lost",
	fencing.SignOfLife:           "The machine of the silent node may run",
	fencing.NothingToLose:        "The silent node has no volume to move",
	fencing.NodeLeaseHeld:        "Another component works on the silent node",
	fencing.DetectorCutOff:       "Recovery hears no node at all",
	fencing.TooManySilent:        "Too many nodes are silent at once",
	fencing.ZoneSilent:           "Too many nodes of the zone are silent at once",
	fencing.TooManyFenced:        "As many nodes were fenced lately as allowed",
	fencing.TooManyInFlight:      "As many nodes are being fenced as allowed",
}

// lookingGuides are the reasons of a node that recovery still looks at.
var lookingGuides = map[decision.Reason]Guide{
	fencing.NodeAlive: {
		Title: "The node renews its lease",
		Page:  pageNotFenced, Silence: ends, Unanswered: "the node is well",
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s renews its lease, so recovery has no cause to fence it", s.Node)
		},
	},
	fencing.SilenceTooShort: {
		Title: "The node is not silent for long enough yet",
		Page:  pageNotFenced, Silence: ends,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s is silent, and not for as long yet as recovery waits before it acts", s.Node)
		},
		Next: func(s Situation) []Step { return []Step{evidenceOf(s.Node)} },
	},
	RecoveryNotRunning: {
		Title: "A part of recovery does not run",
		Page:  pageRecovery, Silence: onlyAsked,
		Summary: func(s Situation) string { return "recovery does not act: " + s.Detail },
		Next: func(Situation) []Step {
			return []Step{{Text: "Find out why it does not run.", Command: "kubectl get pods -n belay-system"}}
		},
	},
	TaintWithoutFence: {
		Title: "The node has taints of a fence that does not exist",
		Page:  pageRecovery, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s has taints of a NodeFence that does not exist any more, so that nothing removes them, and no pods are scheduled to it%s", s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return RemoveTaints(s.Node, fenceTaints)
		},
	},
	fencing.NotReadLive: {
		Title: "The API server has not confirmed the silence yet",
		Page:  pageNotFenced, Silence: ends, Unanswered: "it ends within a second",
		Summary: func(s Situation) string {
			return fmt.Sprintf("recovery is about to read node %s and its lease from the API server itself", s.Node)
		},
		Next: func(s Situation) []Step { return []Step{evidenceOf(s.Node)} },
	},
}

// fenceTitles are the reasons for which a fence waits. Unsafe: nothing is proven, so the machine may still write.
var fenceTitles = map[decision.Reason]struct {
	title   string
	verdict Verdict
	page    Page
}{
	fencing.NoEvidence:           {"No power switch is known to be the node's own", Unsafe, pagePowerSwitch},
	fencing.SourceLocked:         {"The power switch is not asked any more", Unsafe, pagePowerSwitch},
	fencing.AwaitingSource:       {"Recovery waits for the answer of the power switch", Unsafe, pagePowerSwitch},
	fencing.SourceSilent:         {"The power switch does not answer", Unsafe, pagePowerSwitch},
	fencing.IntentOpen:           {"A command to switch off may still be carried out", Unsafe, pagePowerSwitch},
	fencing.NotOff:               {"The machine is not off yet", Unsafe, pagePowerSwitch},
	fencing.Contradicted:         {"A machine that was proven off shows a sign of life", Unsafe, pagePowerSwitch},
	fencing.AwaitingPods:         {"Pods of the fenced node are being deleted", "", pageRecovery},
	fencing.AwaitingDetach:       {"Volumes of the fenced node are being detached", "", pageRecovery},
	fencing.AwaitingBoot:         {"The volumes have moved, and the machine has not started again", "", pageRecovery},
	fencing.AwaitingRelease:      {"The node is back and waits for a person to release it", "", pageRecovery},
	fencing.SettlingAfterTaint:   {"The node is released and gets no pods for a minute", "", pageRecovery},
	fencing.AwaitingUnmount:      {"The node is back and unmounts volumes that may have been taken from it", "", pageRecovery},
	fencing.AwaitingReturn:       {"The fence is to end, and the machine may still have volumes mounted that were taken from it", Unsafe, pageRecovery},
	fencing.RequestWithdrawn:     {"The request for the fence was withdrawn, so no command is sent", Unsafe, pagePowerSwitch},
	fencing.SwitchOffHeld:        {"The fencer holds back the command to switch off", Unsafe, pagePowerSwitch},
	fencing.NodeDeletedMachineOn: {"The Node was deleted, and its machine still runs", Unsafe, pagePowerSwitch},
	fencing.EarlierMachine:       {"Volumes of an earlier machine of the name are left", Unsafe, pagePowerSwitch},
}

// FenceSummary is one sentence about a fence that waits. The detail is its phase.
func FenceSummary(r decision.Reason, s Situation) string {
	missing, _ := FenceWait(r)
	if s.Ends != "" {
		return fmt.Sprintf("the fence of node %s is to end: %s; recovery waits for %s, and then cancels the fence", s.Node, s.Ends, missing)
	}
	switch r {
	case fencing.Contradicted:
		return fmt.Sprintf("the boot of node %s that was proven to have ended renews its lease: recovery deletes nothing more, and its machine may still write", s.Node)
	case fencing.AwaitingPods, fencing.AwaitingDetach:
		return fmt.Sprintf("the machine of node %s is proven off, and recovery waits for %s", s.Node, missing)
	case fencing.AwaitingBoot:
		return fmt.Sprintf("the machine of node %s is proven off, and no volume is attached to it any more: recovery waits for %s", s.Node, missing)
	case fencing.AwaitingRelease:
		return fmt.Sprintf("node %s is back after it was fenced, and recovery waits for %s", s.Node, missing)
	case fencing.AwaitingUnmount:
		return fmt.Sprintf("node %s is back, and gets no pods before it has unmounted the volumes that may have been taken from it while it was cut off", s.Node)
	case fencing.AwaitingReturn:
		return fmt.Sprintf("node %s gets no pods, although its fence is to end: its machine is silent, and may have volumes mounted that were taken from it", s.Node)
	case fencing.NodeDeletedMachineOn:
		return fmt.Sprintf("the Node of %s was deleted, and its power switch says On: its volumes stay, because its machine may still write", s.Node)
	case fencing.SettlingAfterTaint:
		return fmt.Sprintf("node %s is back after it was fenced, and recovery is releasing it", s.Node)
	}
	if p := fencing.Phase(s.Detail); p == fencing.Releasing || p == fencing.Released || p == fencing.Cancelled {
		return fmt.Sprintf("recovery is releasing node %s, whose machine may run again, and waits for %s", s.Node, missing)
	}
	phase := ""
	if s.Detail != "" {
		phase = " (phase " + s.Detail + ")"
	}
	return fmt.Sprintf("node %s is being fenced%s, and recovery waits for %s; until then its machine may still write", s.Node, phase, missing)
}

// TakenByFence is why a node lists a volume that has no VolumeAttachment there.
func TakenByFence(node string) string {
	return fmt.Sprintf("node %s lists the volume without a VolumeAttachment, because recovery took it from the boot that it fenced", node)
}

// FenceNext is what a person can do about a fence that waits.
func FenceNext(r decision.Reason, node string) []Step {
	var steps []Step
	switch r {
	case fencing.NoEvidence:
		steps = []Step{statePoweredOff(node), {Text: "To let recovery do this the next time, create a FenceSource for the node. The command describes its fields.", Command: "kubectl explain fencesource.spec"}}
	case fencing.SourceLocked:
		steps = []Step{{Text: "Correct the Secret of the FenceSource: it is asked again after that.", Command: "kubectl get fencesource " + node + " -o yaml"}, statePoweredOff(node)}
	case fencing.SourceSilent:
		steps = []Step{{Text: "Check that the fencer runs, and that it reaches the power switch: it is asked again and again.", Command: "kubectl belay check"}, statePoweredOff(node)}
	case fencing.AwaitingReturn:
		steps = []Step{{Text: "Start the machine: a new boot has no old mounts."}, statePoweredOff(node)}
	case fencing.NotOff:
		steps = []Step{{Text: "Switch the machine off yourself. Recovery asks the power switch again every second, and continues when it says Off."}}
	case fencing.RequestWithdrawn:
		steps = []Step{
			{Text: "If no other remediator works on the node, end the fence of the request. A fence of recovery's own may begin after that.", Command: "kubectl belay unfence " + node},
			{Text: "If none begins, ask for the power-off yourself.", Command: "kubectl belay fence " + node + " --power-off"},
		}
	default:
		if _, advice := FenceWait(r); advice != "" {
			steps = []Step{{Text: strings.ReplaceAll(advice, "NODE", node)}}
		}
	}
	if r == fencing.AwaitingRelease {
		steps = []Step{{Text: "If the node is as it should be, release it.", Command: "kubectl belay unfence " + node}}
	}
	return append(steps, evidenceOf(node))
}

// FenceClock is what happens to a fence that waits without anyone's help.
func FenceClock(r decision.Reason) string { return fenceClocks[r] }

var fenceClocks = map[decision.Reason]string{
	fencing.NoEvidence:         "recovery does nothing more until a power switch that said On during this boot can be used, or a person makes a statement: time alone changes nothing",
	fencing.SourceLocked:       "recovery does nothing more until the Secret or the FenceSource changes, or a person makes a statement: time alone changes nothing",
	fencing.AwaitingSource:     "recovery asks the power switch, and continues with its answer",
	fencing.SourceSilent:       "recovery asks the power switch again and again, and continues when it answers",
	fencing.IntentOpen:         "recovery continues when the command can no longer be carried out, at most 30 s after it was stored",
	fencing.NotOff:             "recovery asks the power switch again every second, and continues when it says Off",
	fencing.Contradicted:       "recovery deletes nothing more until the node shows another boot, or a person decides",
	fencing.AwaitingPods:       "a volume is detached once the pods that use it are gone, and waits for no other pod",
	fencing.AwaitingDetach:     "the volumes are detached because of the fence, without an unmount",
	fencing.AwaitingBoot:       "recovery releases the node when its machine has started again and the node is Ready",
	fencing.AwaitingRelease:    "recovery does nothing more until the NodeFence is deleted",
	fencing.SettlingAfterTaint: "recovery lets pods be scheduled to the node a minute after the out-of-service taint was removed",
	fencing.AwaitingUnmount:    "recovery lets pods be scheduled to the node when it lists no volume in use that is not attached to it, or has started again",
	fencing.AwaitingReturn:     "recovery lets pods be scheduled to the node when its machine is back and has unmounted these volumes, has started again, or is proven off: time alone changes nothing",
	fencing.RequestWithdrawn: "recovery sends no command for this fence unless a BelayRemediation asks again; it continues when the power switch says Off, and begins a fence of its own when the node " +
		"has something to lose, shows no sign of life and no other component holds its lease",
	fencing.SwitchOffHeld:        "the fencer sends the command when its own brakes allow it, and recovery continues when the power switch says Off",
	fencing.NodeDeletedMachineOn: "recovery asks the power switch again every 10 s, and moves the volumes when it says Off; it does not switch the machine off because its Node was deleted",
	fencing.EarlierMachine:       "recovery continues when no VolumeAttachment of the earlier machine is left",
	fencing.SilenceTooShort:      "recovery continues when the node was silent for its whole limit, and cancels the fence if it renews its lease",
	fencing.NodeUnknown:          "recovery continues when the API server answers",
	fencing.NotReadLive:          "recovery continues when the API server answers",
}

// heldClocks are what has to change before recovery fences a silent node.
var heldClocks = map[decision.Reason]string{
	fencing.NodeOptedOut:         "when the annotation fencing.belay.dev/opt-out, or the label remediation.medik8s.io/exclude-from-remediation, is removed",
	fencing.NodeUnderMaintenance: "when its maintenance has ended",
	fencing.NodeIdentityUnknown:  "when its status has a bootID and a systemUUID",
	fencing.NoSecondSignal:       "when a second signal agrees with the lease: the node is not Ready, its kubelet's port does not answer, or its power switch says Off",
	fencing.SignOfLife: "when its machine does not answer any more, or when it gets no chance any more: a pod with a volume was evicted from it, or it was not Ready and silent for " +
		"--recovery-chance (5 minutes by default)",
	fencing.NothingToLose:   "when a pod with a volume, or a VolumeAttachment, is bound to it",
	fencing.NodeLeaseHeld:   "when the lease of the node expires, or is released",
	fencing.DetectorCutOff:  "when other nodes are heard again",
	fencing.TooManySilent:   "when fewer nodes count as silent",
	fencing.ZoneSilent:      "when fewer nodes of its zone count as silent",
	fencing.TooManyFenced:   "when the last fences are long enough ago",
	fencing.TooManyInFlight: "when another fence has deleted the pods of its node, or was cancelled",
}

// HeldClock is what happens to a silent node, without anyone's help, that recovery does not fence.
func HeldClock(r decision.Reason, node string) string {
	if heldClocks[r] == "" {
		return fmt.Sprintf("recovery does not fence node %s (%s)", node, r)
	}
	return fmt.Sprintf("if its lease stays silent, recovery fences node %s, which switches its machine off, %s (%s)", node, heldClocks[r], r)
}

// FenceEnds is what happens when no command to a machine can be carried out any more, by the phase of the fence.
func FenceEnds(p fencing.Phase) string {
	if p == fencing.Releasing {
		return "then the node is released"
	}
	return "then the power switch is asked, and the fence is cancelled"
}

// TooManyAre says which nodes count as silent.
func TooManyAre(nodes string) string {
	return "nodes that count as silent, as far as they were read: " + nodes
}

// AnotherMachine says that the Node shows another machine than the one that is fenced.
func AnotherMachine(node, state, shown, fenced string) string {
	return fmt.Sprintf("another machine, system UUID %s, has the name %s now, and its Node is %s: do not switch that one off; the fence is about the machine with system UUID %s", shown, node, state, fenced)
}

// MeansMachine is the first step about a machine whose name another one has.
func MeansMachine(machine string) Step {
	return Step{Text: fmt.Sprintf("Find the machine with system UUID %s. The steps that follow are about that one, and not about the machine that has the name now.", machine)}
}

// WrongStatement is the first step about a machine that a person stated to be off, and that shows a sign of life.
func WrongStatement(by, reason string) Step {
	if by == "" {
		by, reason = "a person", "the statement is not there any more"
	}
	return Step{Text: fmt.Sprintf("Find out at once which machine runs under this name: that it is off was stated by %s (%s). The statement was wrong, or about another machine. Nothing more is deleted.", by, reason)}
}

// NotBefore is the step of a machine that may still be switched off by a command that was stored.
func NotBefore(end time.Time) Step {
	return Step{Text: "Do not start the machine before " + end.UTC().Format(time.RFC3339) + ": until then a command that was stored may still switch it off."}
}

// fenceTaints are those of a fence, in the order in which recovery removes them.
var fenceTaints = []string{"node.kubernetes.io/out-of-service", "fencing.belay.dev/isolated"}

// RemoveTaints are the steps that remove taints which nothing else removes, in that order: pods come to the node only once no
// controller acts on the out-of-service taint any more. kubectl removes none of several if one is missing.
func RemoveTaints(node string, keys []string) []Step {
	steps := []Step{{Text: "Make sure that the node is as it should be: the machine has started again since, or is gone for good.", Command: "kubectl get node " + node}}
	text := "Then remove the taint."
	for _, key := range fenceTaints {
		if !slices.Contains(keys, key) {
			continue
		}
		steps = append(steps, Step{Text: text, Command: "kubectl taint node " + node + " " + key + "-"})
		text = "A minute later, remove this one too."
	}
	return steps
}

// statePoweredOff is the step for a person who takes the place of a power switch.
func statePoweredOff(node string) Step {
	return Step{
		Text:    "Take the place of the power switch: switch the machine off yourself, check that it is off, and state it. This shows what is needed for that, and writes nothing.",
		Command: "kubectl belay fence " + node,
	}
}

// askPowerOff is the step for a person who does not want to wait for recovery.
func askPowerOff(node string) Step {
	return Step{
		Text:    "Or ask for the power-off of its machine now; whatever still runs there ends. This shows what is needed for that, and writes nothing.",
		Command: "kubectl belay fence " + node + " --power-off",
	}
}

func evidenceOf(node string) Step {
	return Step{Text: "See all that is known about the machine.", Command: "kubectl belay evidence node/" + node}
}

// EvidenceOf is the step that shows what recovery knows about a node.
func EvidenceOf(node string) Step { return evidenceOf(ShellWord(node)) }

func notFencedNext(r decision.Reason, node string) []Step {
	switch r {
	case fencing.NodeOptedOut:
		return []Step{
			{Text: "If the node may be fenced, remove the annotation, or the label of medik8s. The annotation's value may say why the node has it.", Command: "kubectl describe node " + node},
			{Text: "Remove the annotation.", Command: "kubectl annotate node " + node + " fencing.belay.dev/opt-out-"},
			{Text: "Remove the label.", Command: "kubectl label node " + node + " remediation.medik8s.io/exclude-from-remediation-"},
		}
	case fencing.ControlPlaneNode:
		return []Step{
			{Text: "Find out whether the machine is off, at its BMC, hypervisor or cloud, and bring it back: recovery never fences this node.", Command: "kubectl get node " + node},
			{Text: "If it is off and stays off, declare it out of service, as without recovery."},
		}
	case fencing.NodeUnderMaintenance:
		return []Step{{Text: "Wait for the end of the maintenance, or ask its owner.", Command: "kubectl describe node " + node}}
	case fencing.NodeIdentityUnknown:
		return []Step{{Text: "Find out why the kubelet reports no bootID or systemUUID: without them no evidence can be matched.", Command: "kubectl get node " + node + " -o jsonpath='{.status.nodeInfo}'"}}
	case fencing.SignOfLife:
		return []Step{
			{Text: "Find out on the machine whether kubelet runs (systemctl status kubelet) and reaches the API server: start it, and the node is not fenced.", Command: "kubectl describe node " + node},
			{Text: "If its containers must run on without kubelet, keep its machine from being switched off meanwhile.", Command: "kubectl annotate node " + node + " fencing.belay.dev/opt-out=true"},
			askPowerOff(node),
		}
	case fencing.NoSecondSignal:
		return []Step{{Text: "Find out why the kubelet does not renew its lease although its machine seems to run.", Command: "kubectl describe node " + node}}
	case fencing.NothingToLose:
		return []Step{{Text: "Find out why the node is silent: it may be starting again. Nothing has to be done for volumes.", Command: "kubectl describe node " + node}, askPowerOff(node)}
	case fencing.NodeLeaseHeld:
		return []Step{
			{Text: "Read who holds the lease of the node, and until when: another remediator of NodeHealthCheck, or a maintenance.", Command: "kubectl get leases -A --field-selector metadata.name=node-" + node + " -o yaml"},
		}
	case fencing.TooManySilent:
		return []Step{
			{Text: "Look for the common cause: the network, a zone, or the control plane.", Command: "kubectl get nodes"},
			{Text: "See which nodes were fenced: each counts until its machine has started again and its NodeFence is Releasing. Start it, or delete its Node if it will not come back.", Command: "kubectl get nodefences"},
		}
	case fencing.TooManyFenced, fencing.TooManyInFlight:
		return []Step{{Text: "Look at the other fences: this one begins by itself when the brake allows it.", Command: "kubectl get nodefences"}, askPowerOff(node)}
	}
	return []Step{{Text: "Look for the common cause: the network, a zone, or the control plane.", Command: "kubectl get nodes"}}
}

// The reasons of the condition FenceReady of a FenceSource (internal/recovery) that have steps of their own.
const (
	SourceTooManyFailures  = "TooManyFailures"
	sourceSecretUnreadable = "SecretUnreadable"
	sourceNoIdentity       = "NoIdentity"
	sourceOtherMachine     = "OtherMachine"
	sourceNotOn            = "NotOn"
	sourceShared           = "SharedSwitch"
	sourceNoAnswer         = "NoAnswer"
)

// The reasons of that condition that have a page of their own: no power switch was asked.
const (
	// AgentUnusable: the fence agent of a FenceSource is not installed where the fencer runs, or is no fence agent.
	AgentUnusable decision.Reason = "AgentUnusable"
	// OptionsRefused: the FenceSource or its Secret has an option that the agent does not know, or that must not be set.
	OptionsRefused decision.Reason = "OptionsRefused"
	// OffUntested: nothing says what the agent of a FenceSource calls Off.
	OffUntested decision.Reason = "OffUntested"
	// SecretNotBound: the Secret of a FenceSource does not name the address that the FenceSource has.
	SecretNotBound decision.Reason = "SecretNotBound"
)

// sourceGuides are the guides of the reasons that have a page of their own.
var sourceGuides = map[decision.Reason]Guide{
	AgentUnusable: {
		Title: "The fence agent of the power switch cannot be run",
		Page:  pagePowerSwitch, Silence: onSource,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the power switch of node %s cannot be asked: its fence agent is not installed where the fencer runs, or is no fence agent", s.Node)
		},
		Next: func(s Situation) []Step { return sourceNext(string(AgentUnusable), s.Node) },
	},
	OptionsRefused: {
		Title: "An option of the power switch is refused",
		Page:  pagePowerSwitch, Silence: onSource,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the power switch of node %s cannot be asked: its FenceSource or its Secret has an option that is refused", s.Node)
		},
		Next: func(s Situation) []Step { return sourceNext(string(OptionsRefused), s.Node) },
	},
	OffUntested: {
		Title: "The Off of the fence agent does not count",
		Page:  pagePowerSwitch, Silence: onSource,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the power switch of node %s is not asked: its fence agent may say Off of a machine that runs, as far as is known", s.Node)
		},
		Next: func(s Situation) []Step { return sourceNext(string(OffUntested), s.Node) },
	},
	SecretNotBound: {
		Title: "The Secret is not known to be for this power switch",
		Page:  pagePowerSwitch, Silence: onSource,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the power switch of node %s is not asked: its Secret does not say that it may be sent there", s.Node)
		},
		Next: func(s Situation) []Step { return sourceNext(string(SecretNotBound), s.Node) },
	},
}

// SourceReason is the reason for which a node could not be fenced, by the reason of the condition FenceReady of its power switch.
func SourceReason(reason string) decision.Reason {
	switch reason {
	case SourceTooManyFailures:
		return fencing.SourceLocked
	case string(AgentUnusable):
		return AgentUnusable
	case string(OptionsRefused):
		return OptionsRefused
	case string(OffUntested):
		return OffUntested
	case string(SecretNotBound):
		return SecretNotBound
	}
	return fencing.NoEvidence
}

// SourceNext is what a person can do about a power switch that cannot be used, by the reason of its condition FenceReady.
// A switch that refused the login was reached: then it is not the network.
func SourceNext(reason string, refused bool, node string) []Step {
	steps := sourceNext(reason, ShellWord(node))
	if refused && reason == sourceNoAnswer {
		steps[0].Text = "Correct user and password in the Secret of the FenceSource: the power switch refused the login."
	}
	return steps
}

// BoundLater says for which fence a FenceSource counts that is corrected while its node is silent. The fencer looks again at one that said On for the boot, and binds no
// other switch before the node lives.
func BoundLater(bound bool) Step {
	if bound {
		return Step{Text: "Recovery asks the corrected power switch, and uses it if it is the hardware that said On during this boot."}
	}
	return Step{Text: "A corrected FenceSource counts for the next fence: that a power switch is the node's own is found out while the node lives."}
}

func sourceNext(reason, node string) []Step {
	text := map[string]string{ //nolint:gosec // texts about Secrets
		SourceTooManyFailures:  "Correct the Secret of the FenceSource, or the FenceSource: the power switch is asked again after that.",
		sourceSecretUnreadable: "Create the Secret that the FenceSource names, or allow the fencer to read it.",
		sourceNoIdentity:       "Find out by other means whose power switch it is, and state it with the annotation fencing.belay.dev/machine on the FenceSource.",
		sourceOtherMachine:     "Correct the address or the plug: the power switch belongs to another machine. If the message names a suspect, look at that kubelet first: a Node shows what its kubelet writes.",
		sourceNotOn:            "Correct the address or the plug: the power switch says Off while the node runs.",
		sourceShared:           "Correct the FenceSources: two nodes have the same power switch, or the hardware of both has the same system UUID.",
		string(AgentUnusable):  "Install the agent in the image of the fencer, name its directory with --recovery-agent-path, or correct the name of the agent in the FenceSource.",
		string(OptionsRefused): "Correct the option that the message names, in the FenceSource or in its Secret.",
		string(OffUntested):    "Use an agent whose Off is known, or test the agent on a drained node, and say so in the field offTested of its feed.",
		string(SecretNotBound): "Check that the address is one of your power switches. If it is, set the annotation that the message shows on the Secret.",
		sourceNoAnswer:         "Check the address, the network between the fencer and the power switch, the options of the agent, and user and password in its Secret.",
	}[reason]
	if text == "" {
		text = "Wait for a minute: the fencer asks the power switch about that often. Then check that it runs."
	}
	return []Step{{Text: text, Command: "kubectl describe fencesource " + node}}
}
