package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// ofNode returns what waits because of a node: its volumes that others wait for, that are not attached, or that do not leave it.
func (x *state) ofNode(name string) (found []Finding, clear string, err error) {
	node := x.nodes[name]
	ref := Ref{Resource: Nodes, Name: name}
	attached := 0
	for _, va := range x.Attachments {
		if va.Spec.NodeName != name {
			continue
		}
		attached++
		f, _ := x.ofAttachment(va)
		found = append(found, f...)
	}
	if node == nil && attached == 0 {
		if x.exists(ref) == decision.No {
			return nil, "", fmt.Errorf("%s does not exist, and no VolumeAttachment refers to it", ref)
		}
		return nil, "", x.missing(ref)
	}
	if node != nil {
		for _, unique := range volumesOf(node) {
			if key, ok := keyOf(unique); ok {
				found = append(found, x.irregular(key)...)
			}
		}
	}
	state := x.node(name)
	fenced := x.fenceOf(name)
	switch reason := x.lostBecause(state, attached); {
	case fenced != nil:
		found = x.insteadOfPods(found, x.fenced(fenced, state, attached), name)
	case reason != "":
		found = x.insteadOfPods(found, x.lost(state, reason, attached), name)
	}
	found = append(slices.DeleteFunc(found, func(f Finding) bool { return f.Verdict == Clear }), x.taintsLeft(name)...)
	if fenced != nil {
		return found, explain.FenceSummary(fenced.reason, x.situationOf(fenced)) + x.doneBy(fenced), nil
	}
	if state.OutOfService && state.State != NodeReady {
		return found, fmt.Sprintf("node %s is out of service (%s, with the out-of-service taint), and no volume is attached to it: "+
			"remove the taint before the machine is started again", name, state.State), nil
	}
	clear = fmt.Sprintf("node %s is %s, and nothing is wrong with the volumes that are attached to it (%d)", name, state.State, attached)
	if last := x.fences[name]; last != nil { // one that is over
		clear += after("; its last fence, "+strings.ToLower(string(last.Status.Phase))+" since, was ", x.provenBy(last))
	}
	return found, clear, nil
}

// Rebooted is the reason of kubelet's event about a node that has another boot than before (k/k v1.36.3 pkg/kubelet/events/event.go:74).
const Rebooted = "Rebooted"

// rebooted is when a node rebooted, as its kubelet reports; empty if it reports none.
func (x *state) rebooted(name string) string {
	for _, e := range x.events[eventKey("Node", "", name)] {
		if e.Reason == Rebooted && from(e, nodeAgents) {
			return x.ago(eventTime(e)) + " ago"
		}
	}
	return ""
}

// insteadOfPods adds the finding about a node, which is about the node's own pods and lists too.
func (x *state) insteadOfPods(found []Finding, own Finding, node string) []Finding {
	found = slices.DeleteFunc(found, func(f Finding) bool {
		pod := x.pods[join(f.Subject.Namespace, f.Subject.Name)]
		return f.Reason == own.Reason && (f.Subject == own.Subject || f.Subject.Resource == Pods && pod != nil && pod.Spec.NodeName == node)
	})
	return append(found, own)
}

// lostBecause returns why the node itself keeps its volumes from leaving; empty if it does not.
func (x *state) lostBecause(n NodeState, attached int) decision.Reason {
	switch {
	case n.State == NodeDeleted:
		return attachment.NodeGone
	case n.OutOfService && n.State == NodeReady:
		return attachment.OutOfServiceNodeReady
	case n.OutOfService && attached == 0:
		return ""
	case n.OutOfService && x.answers(n), n.State == NodeNotReady && !n.OutOfService, n.State == NodeUnreachable && !n.OutOfService:
		return explain.NodeNotReady
	case n.OutOfService:
		return explain.NodeOutOfService
	case x.silentNode(n):
		return explain.NodeSilent
	}
	return ""
}

// lost describes a node that does not work, or is about to be found so.
func (x *state) lost(n NodeState, reason decision.Reason, attached int) Finding {
	w := wait{reason: reason}
	switch {
	case reason == explain.NodeSilent || reason == explain.NodeNotReady:
		w.since = n.lostSince()
	case reason == attachment.OutOfServiceNodeReady && n.Since != nil:
		w.since = *n.Since
	}
	f := x.findingOf(w, explain.Situation{Node: n.Name})
	f.Subject = Ref{Resource: Nodes, Name: n.Name}
	held := x.heldReason(reason, n.Name)
	state := map[decision.Reason]string{
		explain.NodeNotReady:             "is not Ready (" + n.State + ")",
		explain.NodeOutOfService:         "is not Ready and has the out-of-service taint",
		explain.NodeSilent:               "still counts as Ready, but its kubelet is silent: it last renewed its lease at " + stamp(w.since),
		attachment.NodeGone:              "has no Node object any more, and its machine may still run",
		attachment.OutOfServiceNodeReady: "has the out-of-service taint and is Ready: it is not shut down",
	}[reason]
	if held != "" { // as kubectl belay evidence says
		state += explain.AndNotFenced(held)
		f.Reason, f.Runbook = held, explain.Runbook(held)
		f.Next = explain.GuideTo(held).Steps(explain.Situation{Node: n.Name})
	}
	f.Summary = fmt.Sprintf("node %s %s; volumes attached to it: %d%s", n.Name, state, attached, x.attachedTo(n.Name))
	f.Clock = x.fenceClock(n.Name)
	if held == fencing.NothingToLose && attached == 0 {
		f.Verdict = NotVolume
		return f
	}
	if attached == 0 && f.Verdict == Unsafe {
		f.Verdict = Blocked
		if reason != attachment.OutOfServiceNodeReady && held == "" { // the taint stays until it is removed
			f.Next = nil
		}
	}
	return f
}

// fewNames limits the names in a sentence.
const fewNames = 5

// attachedTo names the first volumes that are attached to a node, by their claims where these may be named.
func (x *state) attachedTo(node string) string {
	var names []string
	for _, va := range x.Attachments {
		if va.Spec.NodeName != node {
			continue
		}
		pv := x.volumes[kube.SourceName(va)]
		switch {
		case pv != nil && pv.Spec.ClaimRef != nil && x.mayName(pv.Spec.ClaimRef.Namespace):
			names = append(names, "claim "+join(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name))
		case kube.SourceName(va) != "":
			names = append(names, "volume "+kube.SourceName(va))
		}
	}
	slices.Sort(names)
	if len(names) > fewNames {
		names = append(names[:fewNames], "...")
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
