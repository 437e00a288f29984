package explain

import (
	"fmt"
	"maps"
	"strings"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
)

func init() {
	for r, title := range notFencedTitles {
		guides[r] = Guide{
			Title:   title,
			Summary: func(s Situation) string { return fmt.Sprintf("recovery does not fence node %s: %s", s.Node, notFenced[r]) },
			Next:    func(s Situation) []Step { return append(notFencedNext(r, s.Node), evidenceOf(s.Node)) },
		}
	}
	maps.Copy(guides, lookingGuides)
	for r, of := range fenceTitles {
		guides[r] = Guide{
			Title: of.title, Unsafe: of.unsafe,
			Summary: func(s Situation) string { return FenceSummary(r, s) },
			Next:    func(s Situation) []Step { return FenceNext(r, s.Node) },
		}
	}
}

// notFencedTitles are the reasons for which a silent node is not fenced.
var notFencedTitles = map[decision.Reason]string{
	fencing.NodeOptedOut:         "An annotation keeps the node from being fenced",
	fencing.NodeUnderMaintenance: "The owner of the node has declared a maintenance",
	fencing.ControlPlaneNode:     "Nodes of the control plane are never fenced",
	fencing.NodeIdentityUnknown:  "The Node has no boot ID or no system UUID",
	fencing.NoSecondSignal:       "Only the lease says that the node is lost",
	fencing.SignOfLife:           "The machine of the silent node answers",
	fencing.DetectorCutOff:       "Recovery hears no node at all",
	fencing.TooManySilent:        "Too many nodes are silent at once",
	fencing.ZoneSilent:           "Too many nodes of the zone are silent at once",
	fencing.TooManyFenced:        "As many nodes were fenced lately as allowed",
	fencing.TooManyInFlight:      "As many nodes are being fenced as allowed",
}

// lookingGuides are the reasons of a node that recovery still looks at.
var lookingGuides = map[decision.Reason]Guide{
	fencing.NodeAlive: {
		Title:   "The node renews its lease",
		Summary: func(s Situation) string { return fmt.Sprintf("node %s renews its lease, so recovery has no cause to fence it", s.Node) },
		Next:    none,
	},
	fencing.SilenceTooShort: {
		Title: "The node is not silent for long enough yet",
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s is silent, and not for as long yet as recovery waits before it acts", s.Node)
		},
		Next: func(s Situation) []Step { return []Step{evidenceOf(s.Node)} },
	},
	fencing.NotReadLive: {
		Title: "The API server has not confirmed the silence yet",
		Summary: func(s Situation) string {
			return fmt.Sprintf("recovery is about to read node %s and its lease from the API server itself", s.Node)
		},
		Next: func(s Situation) []Step { return []Step{evidenceOf(s.Node)} },
	},
}

// fenceTitles are the reasons for which a fence waits. unsafe: nothing is proven, so the machine may still write.
var fenceTitles = map[decision.Reason]struct {
	title  string
	unsafe bool
}{
	fencing.NoEvidence:         {"No power switch is known to be the node's own", true},
	fencing.SourceLocked:       {"The power switch is not asked any more", true},
	fencing.AwaitingSource:     {"Recovery waits for the answer of the power switch", true},
	fencing.SourceSilent:       {"The power switch does not answer", true},
	fencing.IntentOpen:         {"A command to switch off may still be carried out", true},
	fencing.NotOff:             {"The machine is not off yet", true},
	fencing.Contradicted:       {"A machine that was proven off shows a sign of life", true},
	fencing.AwaitingPods:       {"Pods of the fenced node are being deleted", false},
	fencing.AwaitingDetach:     {"Volumes of the fenced node are being detached", false},
	fencing.AwaitingBoot:       {"The volumes have moved, and the machine has not started again", false},
	fencing.AwaitingRelease:    {"The node is back and waits for a person to release it", false},
	fencing.SettlingAfterTaint: {"The node is released and gets no pods for a minute", false},
}

// FenceSummary is one sentence about a fence that waits. The detail is its phase.
func FenceSummary(r decision.Reason, s Situation) string {
	missing, _ := FenceWait(r)
	switch r {
	case fencing.Contradicted:
		return fmt.Sprintf("the boot of node %s that was proven to have ended renews its lease: recovery deletes nothing more, and its machine may still write", s.Node)
	case fencing.AwaitingPods, fencing.AwaitingDetach:
		return fmt.Sprintf("the machine of node %s is proven off, and recovery waits for %s", s.Node, missing)
	case fencing.AwaitingBoot:
		return fmt.Sprintf("the machine of node %s is proven off, and no volume is attached to it any more: recovery waits for %s", s.Node, missing)
	case fencing.AwaitingRelease:
		return fmt.Sprintf("node %s is back after it was fenced, and recovery waits for %s", s.Node, missing)
	case fencing.SettlingAfterTaint:
		return fmt.Sprintf("node %s is back after it was fenced, and recovery is releasing it", s.Node)
	}
	phase := ""
	if s.Detail != "" {
		phase = " (phase " + s.Detail + ")"
	}
	return fmt.Sprintf("node %s is being fenced%s, and recovery waits for %s; until then its machine may still write", s.Node, phase, missing)
}

// FenceNext is what a person can do about a fence that waits.
func FenceNext(r decision.Reason, node string) []Step {
	var steps []Step
	switch r {
	case fencing.NoEvidence:
		steps = []Step{statePoweredOff(node), {Text: "To let recovery do this the next time, create a FenceSource for the node (docs/recovery.md)."}}
	case fencing.SourceLocked:
		steps = []Step{{Text: "Correct the Secret of the FenceSource: it is asked again after that.", Command: "kubectl get fencesource " + node}, statePoweredOff(node)}
	case fencing.SourceSilent, fencing.AwaitingSource:
		steps = []Step{{Text: "Check that the fencer runs, and that it reaches the power switch: it is asked again and again.", Command: "kubectl belay check"}, statePoweredOff(node)}
	case fencing.NotOff:
		steps = []Step{{Text: "Switch the machine off yourself. Recovery asks the power switch again every second, and continues when it says Off."}}
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

// statePoweredOff is the step for a person who takes the place of a power switch.
func statePoweredOff(node string) Step {
	return Step{
		Text:    "Take the place of the power switch: switch the machine off yourself, check that it is off, and state it. This shows what is needed for that, and writes nothing.",
		Command: "kubectl belay fence " + node,
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
		return []Step{{Text: "If the node may be fenced, remove the annotation.", Command: "kubectl annotate node " + node + " fencing.belay.dev/opt-out-"}}
	case fencing.NodeUnderMaintenance:
		return []Step{{Text: "Wait for the end of the maintenance, or ask its owner.", Command: "kubectl describe node " + node}}
	case fencing.NodeIdentityUnknown:
		return []Step{{Text: "Find out why the kubelet reports no bootID or systemUUID: without them no evidence can be matched.", Command: "kubectl get node " + node + " -o jsonpath='{.status.nodeInfo}'"}}
	case fencing.NoSecondSignal, fencing.SignOfLife:
		return []Step{{Text: "Find out why the kubelet does not renew its lease although its machine seems to run.", Command: "kubectl describe node " + node}}
	case fencing.TooManyFenced, fencing.TooManyInFlight:
		return []Step{{Text: "Look at the other fences: this one begins by itself when the brake allows it.", Command: "kubectl get nodefences"}}
	}
	return []Step{{Text: "Look for the common cause: the network, a zone, or the control plane.", Command: "kubectl get nodes"}}
}
