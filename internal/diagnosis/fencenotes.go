package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// situationOf is what the texts about a fence need to know.
func (x *state) situationOf(f *fence) explain.Situation {
	return explain.Situation{Node: f.node(), Detail: string(f.Phase), Ends: x.endedBy(f)}
}

// early reports whether the fence has taken nothing from the node, so that it can be cancelled.
func (f *fence) early() bool {
	return slices.Contains([]fencing.Phase{fencing.Suspected, fencing.Isolating, fencing.Fencing}, f.Phase)
}

// endedBy is why a fence ends that has sent a command, and waits until that cannot be carried out late; empty for another fence.
func (x *state) endedBy(f *fence) string {
	if !f.early() || !x.waitsForCommand(f) {
		return ""
	}
	node, lease := x.nodes[f.node()], x.heartbeats[f.node()]
	if x.replaced(f) { // Node and lease are another machine's
		node, lease = nil, nil
	}
	switch {
	case node != nil && kube.FenceOptedOut(node):
		return explain.NotFencedBecause(fencing.NodeOptedOut)
	case node != nil && kube.UnderMaintenance(node):
		return explain.NotFencedBecause(fencing.NodeUnderMaintenance)
	case lease != nil && kube.FenceRenewal(f.object) != "" && kube.Renewal(lease) != kube.FenceRenewal(f.object):
		return "the node has renewed its lease since it was suspected"
	case f.Deleting:
		return "the NodeFence is being deleted"
	case f.reason == fencing.IntentOpen:
		return "the node showed a sign of life" // nothing else ends a fence then
	}
	return ""
}

// waitsForCommand reports whether the fence has sent a command, and waits until that cannot be carried out late.
func (x *state) waitsForCommand(f *fence) bool {
	return f.Intent.Nonce != "" && (f.reason == fencing.IntentOpen || f.reason == fencing.AwaitingSource && !x.Now.Before(f.Intent.NotAfter))
}

// fenceNotes are what a fence depends on besides its evidence: what the owner of the node wants, and taints that are not its own.
func (x *state) fenceNotes(f *fence) (notes []string) {
	node := x.nodes[f.node()]
	if node == nil {
		return nil
	}
	if kube.FenceOptedOut(node) {
		notes = append(notes, explain.NotFencedBecause(fencing.NodeOptedOut))
	}
	if kube.UnderMaintenance(node) {
		notes = append(notes, explain.NotFencedBecause(fencing.NodeUnderMaintenance))
	}
	for _, t := range node.Spec.Taints {
		if t.Key == kube.OutOfServiceTaint && !strings.HasPrefix(t.Value, kube.FenceTaintPrefix) {
			notes = append(notes, fmt.Sprintf("the taint %s with the value %s is not belay's: recovery never removes it, so it stays when the node is released, until the client that set it removes it", t.Key, t.Value))
		}
	}
	return notes
}

func taintText(t corev1.Taint) string { return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect) }

// FenceTaintsLeft returns the taints of recovery on a node that no NodeFence explains, so that nothing removes them. It returns none while it is
// unknown which NodeFences there are.
func (s *Snapshot) FenceTaintsLeft(node *corev1.Node) (left []corev1.Taint) {
	if !slices.Contains(s.Whole, Fences) && !slices.Contains(s.Absent, Ref{Resource: Fences}) {
		return nil
	}
	for _, t := range node.Spec.Taints {
		if (t.Key == kube.OutOfServiceTaint || t.Key == kube.IsolationTaint) && strings.HasPrefix(t.Value, kube.FenceTaintPrefix) {
			left = append(left, t)
		}
	}
	if len(left) == 0 {
		return nil
	}
	for _, f := range s.Fences {
		if f.Spec.NodeName == node.Name && !kube.FenceFinished(f) {
			left = slices.DeleteFunc(left, func(t corev1.Taint) bool { return t.Value == kube.FenceTaint(f.Spec.Epoch) })
		}
	}
	return left
}

// taintsLeft describes a node that has taints of a fence which does not exist any more.
func (x *state) taintsLeft(name string) []Finding {
	node := x.nodes[name]
	if node == nil {
		return nil
	}
	var taints, keys []string
	for _, t := range x.FenceTaintsLeft(node) {
		taints, keys = append(taints, taintText(t)), append(keys, t.Key)
	}
	if len(taints) == 0 {
		return nil
	}
	s := explain.Situation{Node: name, Detail: strings.Join(taints, ", ")}
	return []Finding{{
		Verdict: Blocked, Reason: explain.TaintWithoutFence, Subject: Ref{Resource: Nodes, Name: name}, Summary: explain.GuideTo(explain.TaintWithoutFence).Summary(s),
		Next: explain.RemoveTaints(explain.ShellWord(name), keys), Runbook: explain.Runbook(explain.TaintWithoutFence),
	}}
}

// HeldBack returns why recovery does not fence the nodes that are silent, by node, as it reported since they were heard last.
func (s *Snapshot) HeldBack() map[string]decision.Reason {
	x, held := newState(s), map[string]decision.Reason{}
	for name := range x.nodes {
		if r, _ := x.heldBack(name); r != "" {
			held[name] = r
		}
	}
	return held
}

// runs reports whether a reason for which recovery does not fence a node is that its machine seems to run.
func runs(r decision.Reason) bool { return r == fencing.SignOfLife || r == fencing.NoSecondSignal }

// heldReason is why recovery does not fence a node, in place of the reason of a wait for the node which it explains better.
func (x *state) heldReason(of decision.Reason, node string) decision.Reason {
	switch of {
	case explain.NodeNotReady, explain.NodeSilent, explain.PodOnLostNode, explain.PodNodeNotReady:
		r, _ := x.heldBack(node)
		return r
	}
	return ""
}

// sayHeld adds to what a finding says of a wait for a node why recovery does not act for the node, and what a person can do about that. A machine
// that seems to run is not to be looked for as one that is off.
func (x *state) sayHeld(f *Finding, of decision.Reason, node string) {
	r := x.heldReason(of, node)
	switch r {
	case "":
		return
	case fencing.NothingToLose: // no volume: what the pod waits for is not ended by a fence
		f.Summary += explain.AndNotFenced(r)
		return
	}
	steps := explain.GuideTo(r).Steps(explain.Situation{Node: node})
	if !runs(r) {
		evidence := explain.EvidenceOf(node)
		steps = slices.DeleteFunc(steps, func(s explain.Step) bool { return s == evidence })
		steps = append(steps, f.Next...)
	}
	f.Reason, f.Summary, f.Next, f.Runbook = r, f.Summary+explain.AndNotFenced(r), steps, explain.Runbook(r)
}

// countedSilent says which nodes the brake counts, as far as the snapshot shows: those that do not renew their leases, and those that were fenced
// and are not back.
func (x *state) countedSilent() string {
	counted := map[string]string{}
	for name, lease := range x.heartbeats {
		if at := lease.Spec.RenewTime; at != nil && x.Now.Sub(at.Time) > silence && x.node(name).State != NodeDeleted {
			counted[name] = "lease renewed at " + stamp(at.Time)
			if r := x.excepted(name); r != "" && r != fencing.NodeIdentityUnknown {
				counted[name] += ", never fenced: it counts only when half of all nodes are silent"
			}
		}
	}
	for name := range x.fences {
		switch f := x.fenceBefore(name); {
		case f == nil || f.Phase == fencing.Releasing || f.Phase == fencing.Released || f.Phase == fencing.Cancelled:
		case f.Phase == fencing.Moved:
			counted[name] = "fenced, phase Moved: it counts until its machine is back"
		default:
			counted[name] = "being fenced, phase " + string(f.Phase)
		}
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		names = append(names, name+" ("+counted[name]+")")
	}
	if more := len(names) - fewNames; more > 0 {
		names = append(names[:fewNames], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
