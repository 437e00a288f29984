package diagnosis

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// heldBack is why recovery does not fence a node that is silent, as it reported since the node was heard last. Who may write Events, as each kubelet
// may about any Node, may write one in the name of recovery: what the objects contradict was not said.
func (x *state) heldBack(node string) (decision.Reason, *corev1.Event) {
	if !slices.Contains(x.Whole, Fences) || x.fenceBefore(node) != nil || x.recoveryRuns(roleDetector) == decision.No {
		return "", nil
	}
	n := x.node(node)
	if heard := n.LastHeartbeat; heard != nil && x.Now.Sub(*heard) <= silence || heard == nil && n.State == NodeReady {
		return "", nil
	}
	for _, e := range x.events[eventKey("Node", "", node)] {
		r := decision.Reason(e.Reason)
		if e.ReportingController != Recovery && e.Source.Component != Recovery || x.contradicts(r, node) {
			continue
		}
		if explain.IsNotFenced(r) && (n.LastHeartbeat == nil || !eventTime(e).Before(*n.LastHeartbeat)) {
			return r, e
		}
		return "", nil // what it said after that counts
	}
	return "", nil
}

// contradicts reports whether the objects show that a reason for which recovery would not fence a node is not so. Of some reasons, such as an answer of
// the machine, no object says anything.
func (x *state) contradicts(r decision.Reason, name string) bool {
	node := x.nodes[name]
	switch r {
	case fencing.NodeOptedOut:
		return node != nil && !kube.FenceOptedOut(node)
	case fencing.NodeUnderMaintenance:
		return node != nil && !kube.UnderMaintenance(node)
	case fencing.NodeIdentityUnknown:
		return node != nil && kube.BootOf(node).Complete()
	case fencing.NoSecondSignal:
		return node != nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		})
	case fencing.TooManyInFlight: // the brake allows at least one
		return !slices.ContainsFunc(x.Fences, x.inFlight)
	case fencing.TooManySilent, fencing.ZoneSilent: // the brakes allow one
		return x.othersHeard(name)
	}
	return false
}

// inFlight reports whether a fence may count against the brake for those that are under way, as the detector counts them. No object shows whether
// --recovery-fence-window is another one than by default, so that a fence that has commanded in vain for that long is not known to count.
func (x *state) inFlight(object *fencingv1.NodeFence) bool {
	if !slices.Contains(x.Whole, FenceSources) { // a switch that was not read may be asked
		return !kube.FenceFinished(object) && kube.FenceState(object).InFlight()
	}
	return kube.FenceActive(object, x.sources[object.Spec.NodeName], x.Now, fencing.DefaultBrakes().Window)
}

// othersHeard reports whether all other nodes renew their leases, and none of them counts as silent because it is fenced. Beside a Node that exists no
// deleted one counts.
func (x *state) othersHeard(name string) bool {
	if x.nodes[name] == nil || !slices.Contains(x.Whole, Nodes) {
		return false
	}
	for other := range x.nodes {
		if at := x.node(other).LastHeartbeat; other != name && (at == nil || x.Now.Sub(*at) > silence/2) {
			return false
		}
	}
	return !slices.ContainsFunc(x.Fences, func(object *fencingv1.NodeFence) bool { return !kube.FenceFinished(object) })
}
