package diagnosis

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// unmountUsual is how long an unmount may take until it counts as failing: a kubelet sends its list every ten seconds by default, some once a
// minute, and upstream's controller looks at it once a minute.
const unmountUsual = 90 * time.Second

// blockedBy explains why another node has the exclusive volume that a pod waits for: the holder that decides, and the wait.
func (x *state) blockedBy(key attachment.VolumeKey, pod *corev1.Pod, since time.Time) (*Holder, wait) {
	holders := x.holders(key, pod.Spec.NodeName)
	causes := map[string]decision.Reason{}
	for _, step := range x.decide(key).Steps {
		if w, ok := step.(attachment.Wait); ok {
			causes[string(w.Node)] = w.Reason
			for _, b := range w.Blockers {
				if b.Cause.Reason != "" {
					causes[string(b.Node)] = b.Cause.Reason
				}
			}
		}
	}
	var worst *Holder
	var why wait
	for i := range holders {
		h := &holders[i]
		w := x.heldBy(key, h, causes[h.Node.Name], pod, since)
		if worst == nil || x.verdict(w).Severity() > x.verdict(why).Severity() {
			worst, why = h, w
		}
	}
	return worst, why
}

// heldBy explains why one node has the volume. cause is what the rules of the controller say of it.
func (x *state) heldBy(key attachment.VolumeKey, h *Holder, cause decision.Reason, pod *corev1.Pod, since time.Time) wait {
	va, has := x.attachmentOn(key, h.Node.Name)
	if has && va.DeletionTimestamp != nil {
		return x.detachWait(va)
	}
	w := wait{since: since, reason: cause}
	if x.lostUnder(key, h) {
		w.reason = explain.UsedWithoutAttachment
		return w
	}
	if has {
		w.since = sinceRequest(va, w.since)
	}
	if has && va.Status.AttachError != nil && ofAttacher(drivers.Publish, hearError(va.Status.AttachError).own) == publication.RestoredAttachment {
		return x.failed(w, va, drivers.Publish, va.Status.AttachError) // whatever became of its Node, which may be another cluster's
	}
	switch cause {
	case attachment.NodeGone, attachment.NodeReturned, attachment.NodeReplaced, attachment.NodeUnknown, attachment.NodeNotManaged,
		attachment.ForeignAttachment, attachment.OutOfServiceNodeReady:
		return w
	}
	switch h.Node.State {
	case NodeDeleted:
		w.reason = attachment.NodeGone
	case NodeUnknown:
		w.reason = attachment.NodeUnknown
	case NodeReady:
		x.heldByHealthy(&w, key, h, pod)
	default:
		x.heldByLost(&w, h)
	}
	return w
}

// heldByLost explains why a node that is not Ready has the volume.
func (x *state) heldByLost(w *wait, h *Holder) {
	switch {
	case h.InUse == "no" && len(h.Pods)+h.HiddenPods == 0 && !h.PodsUnknown:
		w.reason = x.idle(w.since)
	case h.Node.OutOfService:
		w.since = x.outOfServiceSince(h.Node.Name)
		if w.reason = explain.NodeNotReady; x.shutDown(h.Node) {
			w.reason = explain.NodeOutOfService
		}
	default:
		w.reason = explain.NodeNotReady
		if h.Node.Since != nil {
			w.detail = "since " + stamp(*h.Node.Since)
		}
	}
}

// outOfServiceSince is when the node got the out-of-service taint; zero if the taint does not say so.
func (x *state) outOfServiceSince(name string) time.Time {
	if node := x.nodes[name]; node != nil {
		for _, t := range node.Spec.Taints {
			if t.Key == kube.OutOfServiceTaint && t.TimeAdded != nil {
				return t.TimeAdded.Time
			}
		}
	}
	return time.Time{}
}

// heldByHealthy explains why a node that is Ready has the volume.
func (x *state) heldByHealthy(w *wait, key attachment.VolumeKey, h *Holder, pod *corev1.Pod) {
	users := x.usersOn(key, h.Node.Name)
	va, has := x.attachmentOn(key, h.Node.Name)
	switch {
	case x.beingFenced(h.Node.Name):
		w.reason = explain.NodeSilent
	case x.silentNode(h.Node):
		w.reason, w.detail = explain.NodeSilent, "it last renewed its lease at "+stamp(*h.Node.LastHeartbeat)
	case allTerminate(h):
		w.reason, w.detail = explain.HeldByTerminatingPod, x.grace(users[0])
	case len(users) > 0 && has && !h.Attached && !slices.ContainsFunc(users, mounted):
		w.reason = attachment.OtherWriterAttached // nothing uses it there: whether it is attached is not known
		if own := x.attachWait(va); own.detail != "" {
			w.detail, w.quote = own.detail, own.quote
		}
	case len(users) > 0 && rollsOver(users[0], pod):
		w.reason = explain.RollingUpdateDeadlock
	case len(h.Pods)+h.HiddenPods > 0:
		w.reason = explain.HeldByRunningPod
	case h.PodsUnknown:
		w.reason = attachment.OtherWriterAttached
	case h.InUse == "yes":
		w.since = x.unneededSince(key, h.Node.Name, w.since)
		x.unmounting(w, key, h.Node.Name)
	default:
		w.reason = x.idle(w.since)
	}
}

// allTerminate reports whether there are pods, and all of them are being deleted.
func allTerminate(h *Holder) bool {
	stays := func(p PodState) bool { return p.State != "Terminating" }
	return len(h.Pods) > 0 && h.HiddenPods == 0 && !slices.ContainsFunc(h.Pods, stays)
}

// sinceRequest is since when a volume is waited for, or since when belay-controller has wanted to detach it, if that was before.
func sinceRequest(va *storagev1.VolumeAttachment, waits time.Time) time.Time {
	if at := kube.DetachRequested(va); !at.IsZero() && at.Before(waits) {
		return at
	}
	return waits
}

// unmounting explains why a volume that no pod needs is still in use. Since when it is not needed may be unknown: that no unmount has
// failed is the better guess then, because most do not.
func (x *state) unmounting(w *wait, key attachment.VolumeKey, node string) {
	w.reason = attachment.StillInUse
	if !w.since.IsZero() && x.Now.Sub(w.since) > unmountUsual {
		w.reason = explain.UnmountFailing
		if pod := x.uncleaned(key, node); pod != nil {
			w.detail = explain.NotCleanedUp(node, x.named(pod))
			w.fill = func(s *explain.Situation) { s.Leaving, s.UID = x.named(pod), string(pod.UID) }
		}
	}
	if w.since.IsZero() {
		w.detail = "since when no pod needs it there is unknown: " + explain.HangsAfter(unmountUsual)
	}
}

// silence is how long a kubelet, which renews its lease every ten seconds, may be silent until that means something.
const silence = 25 * time.Second

// silentNode reports whether a node counts as Ready although its kubelet is silent: the node lifecycle controller waits for 50 s by
// default (k/k node-monitor-grace-period).
func (x *state) silentNode(n NodeState) bool {
	return n.State == NodeReady && n.LastHeartbeat != nil && x.Now.Sub(*n.LastHeartbeat) > silence
}

// idle explains why a volume that nothing needs and nothing uses is still attached: the controller is about to detach it, or none
// works.
func (x *state) idle(since time.Time) decision.Reason {
	if x.Now.Sub(since) > unmountUsual {
		return explain.NoDetachController
	}
	return attachment.OtherWriterDetaching
}

// templateHash is the label of a Deployment's pods that tells those of one template from those of another.
const templateHash = "pod-template-hash"

// rollsOver reports whether the holder is the old pod and the other the new one of the same Deployment: two replicas of one template
// are no update.
func rollsOver(holder, pod *corev1.Pod) bool {
	return strings.HasPrefix(owner(holder), "Deployment/") && owner(holder) == owner(pod) && holder.Namespace == pod.Namespace &&
		holder.Labels[templateHash] != pod.Labels[templateHash]
}
