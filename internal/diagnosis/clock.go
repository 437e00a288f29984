package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// Names of the leases of the attach/detach controllers.
const (
	upstreamLease = "kube-controller-manager"
	ownLease      = "belay-controller"
)

// Controller is the attach/detach controller that works in the cluster.
type Controller string

// The controllers.
const (
	Upstream          Controller = "kube-controller-manager"
	Own               Controller = "belay-controller"
	ControllerUnknown Controller = ""
)

// controller returns which attach/detach controller works, as the leases show: belay's refuses to run beside upstream's.
func (x *state) controller() Controller {
	found := ControllerUnknown
	for _, lease := range x.Leases {
		switch {
		case lease.Name == ownLease && x.held(lease):
			return Own
		case lease.Name == upstreamLease && x.held(lease):
			found = Upstream
		}
	}
	return found
}

// upstreamForce is upstream's default for how long an unmount is waited for on a node that is not Ready (k/k
// maxWaitForUnmountDuration).
const upstreamForce = 6 * time.Minute

// clock says what happens without anyone's help to a volume that another node has.
func (x *state) clock(key attachment.VolumeKey, h *Holder, w wait) []string {
	var lines []string
	f := x.fenceOfWait(h.Node.Name, w.reason == attachment.NodeReplaced)
	if lostReasons[w.reason] {
		lines = x.clockOfFence(f, h.Node.Name)
	}
	if f != nil && f.Proven() {
		return lines // the attach/detach controller detaches because of the fence
	}
	switch w.reason {
	case explain.NodeNotReady, attachment.NodeGone, attachment.NodeReturned, attachment.NodeReplaced:
	default:
		return append(lines, x.unmountTick(key, h, w)...)
	}
	for _, pod := range x.usersOn(key, h.Node.Name) {
		lines = append(lines, x.clockOfNode(h.Node, pod)...)
		break // those of the others are alike
	}
	var requested time.Time
	if va, ok := x.attachmentOn(key, h.Node.Name); ok {
		requested = kube.DetachRequested(va)
	}
	switch x.controller() {
	case Upstream:
		lines = append(lines, fmt.Sprintf("kube-controller-manager detaches the volume by force %v after no pod needs it on node %s any more, with its defaults: "+
			"it does not check that the machine is off", upstreamForce, h.Node.Name))
	case Own:
		if w.reason == attachment.NodeReturned {
			lines = append(lines, "belay-controller detaches the volume when the kubelet of node "+h.Node.Name+" was Ready, and did not list it, for about a minute after the pods had left")
		}
		if sign := x.lifeSign(h); sign != "" {
			lines = append(lines, "belay-controller does not detach the volume by force while the machine of node "+h.Node.Name+" is known to run: "+sign)
			break
		}
		at := fmt.Sprintf("%v after no pod needs it on node %s any more", upstreamForce, h.Node.Name)
		if !requested.IsZero() {
			at = "at " + stamp(requested.Add(upstreamForce))
		}
		conditions := map[decision.Reason]string{
			attachment.NodeGone: "unless the node registers again", attachment.NodeReplaced: "whether the node is Ready or not",
		}
		condition := cmp.Or(conditions[w.reason], "if the node is not Ready then")
		who, defaults := "belay-controller", ", with its defaults and without recovery, "
		if slices.Contains(x.Whole, Fences) && x.recoveryRuns(roleActor) == decision.Unknown {
			who, defaults = "belay-controller with recovery in it, as kubectl belay check shows, never detaches because of a timeout, with its defaults; one without recovery", ", "
		}
		lines = append(lines, who+" detaches the volume by force "+at+defaults+condition+": it does not check that the machine is off")
	case ControllerUnknown:
		lines = append(lines, "no lease shows which attach/detach controller works, so it is unknown whether the volume is detached by force, and when: "+
			"kube-controller-manager does so 6m0s after no pod needs it there any more, with its defaults, and does not check that the machine is off")
	}
	return lines
}

// upstreamRuns reports whether a kube-controller-manager holds its lease.
func (x *state) upstreamRuns() bool {
	for _, lease := range x.Leases {
		if lease.Name == upstreamLease && x.held(lease) {
			return true
		}
	}
	return false
}

// clockOfNode says when a pod on a node that is not Ready is deleted: the taint manager waits for its tolerations.
func (x *state) clockOfNode(n NodeState, pod *corev1.Pod) []string {
	if n.State != NodeNotReady && n.State != NodeUnreachable || n.OutOfService || n.Since == nil || !x.mayName(pod.Namespace) {
		return nil
	}
	if pod.DeletionTimestamp != nil {
		return []string{fmt.Sprintf("pod %s has been Terminating for %s and stays until node %s is Ready again, is deleted, or has the out-of-service taint", pod.Name, x.ago(deletedAt(pod)), n.Name)}
	}
	key := corev1.TaintNodeNotReady
	if n.State == NodeUnreachable {
		key = corev1.TaintNodeUnreachable
	}
	seconds, limited, tolerates := tolerated(pod, key)
	switch {
	case limited:
		at := n.Since.Add(time.Duration(seconds) * time.Second)
		return []string{fmt.Sprintf("pod %s is deleted at %s, %d s after node %s stopped being Ready; it stays Terminating until the node answers", pod.Name, stamp(at), seconds, n.Name)}
	case tolerates:
		return []string{fmt.Sprintf("pod %s tolerates a node that is not Ready without a limit: it is never deleted automatically", pod.Name)}
	}
	return nil
}

// tolerated returns for how long the pod tolerates a taint that evicts. As upstream, the shortest limit counts, whatever has none (k/k
// getMinTolerationTime).
func tolerated(pod *corev1.Pod, key string) (seconds int64, limited, tolerates bool) {
	for _, t := range pod.Spec.Tolerations {
		if t.Key != key && t.Key != "" || t.Effect != "" && t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if limit := t.TolerationSeconds; limit != nil && (!limited || *limit < seconds) {
			seconds, limited = *limit, true
		}
		tolerates = true
	}
	return max(seconds, 0), limited, tolerates
}
