package recovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// observe reads what a decision needs. Node and lease are read from the API server itself each time: few nodes are fenced at a time, and a
// cache that lags could show a node that has come back as silent.
func (t *turn) observe(ctx context.Context) (fencing.Observed, error) {
	seen := fencing.Observed{ReadAt: t.now(), Ended: t.mem.ended, Epoch: t.latest}
	if err := t.readOthers(ctx, &seen); err != nil {
		return seen, err
	}
	t.readNode(ctx, &seen)
	if seen.Exists == fencing.Unknown {
		return seen, nil
	}
	t.readLease(ctx, &seen)
	if err := t.readStorage(ctx, &seen); err != nil {
		return seen, err
	}
	if err := t.readEarlier(ctx, &seen); err != nil {
		return seen, err
	}
	t.readAsker(ctx, &seen)
	source := &fencingv1.FenceSource{}
	switch err := t.client.Get(ctx, client.ObjectKey{Name: t.fence.Spec.NodeName}, source); {
	case err == nil:
		seen.Source = boundSource(source)
		if c := source.Status.Command; c != nil {
			t.sent = c.Nonce
		}
	case !apierrors.IsNotFound(err):
		return seen, fmt.Errorf("read FenceSource %s in the cache: %w", t.fence.Spec.NodeName, err)
	}
	t.answerWithin = seen.Source.AnswerWithin()
	t.readAnswers(&seen.Source)
	if t.mem.left != nil {
		seen.Listed, seen.Pods, seen.Attachments = true, t.mem.left.pods, t.mem.left.attachments
	}
	return seen, nil
}

// readNode reads the Node. An error leaves Exists Unknown.
func (t *turn) readNode(ctx context.Context, seen *fencing.Observed) {
	node := &corev1.Node{}
	t.node = nil
	switch err := t.live.Get(ctx, client.ObjectKey{Name: t.fence.Spec.NodeName}, node); {
	case apierrors.IsNotFound(err):
		seen.Exists = fencing.No
		return
	case err != nil:
		return
	}
	t.node = node
	if seen.Now = bootOf(node); t.mayBeAnother(ctx, seen.Now) {
		seen.Now.Machine = ""
	}
	seen.Exists, seen.Version, seen.Ready = fencing.Yes, node.ResourceVersion, ready(node)
	seen.OptedOut, seen.Maintenance = optedOut(node), kube.UnderMaintenance(node)
	value, present := "", false
	for _, taint := range node.Spec.Taints {
		switch {
		case taint.Key == kube.IsolationTaint && taint.Value == taintValue(t.fence.Spec.Epoch):
			seen.Isolated = true
		case taint.Key == kube.OutOfServiceTaint && taint.Effect == corev1.TaintEffectNoExecute:
			value, present = taint.Value, true
		}
	}
	seen.IsolatedLater = slices.ContainsFunc(node.Spec.Taints, func(x corev1.Taint) bool {
		return x.Key == kube.IsolationTaint && epochOf(x.Value) > t.fence.Spec.Epoch
	})
	seen.OutOfService = present && value == taintValue(t.fence.Spec.Epoch)
	seen.ForeignTaint = present && !seen.OutOfService
	if !present {
		t.mem.tainted, t.mem.taintedWith = seen.TaintSeen, ""
	} else if t.mem.tainted.IsZero() || t.mem.taintedWith != value {
		t.mem.tainted, t.mem.taintedWith = t.now(), value
	}
	seen.TaintSeen = t.mem.tainted
}

// describe returns what the Node object and its silence say.
func (p *parts) describe(node *corev1.Node) fencing.Node {
	n := fencing.Node{
		Boot:     bootOf(node),
		OptedOut: optedOut(node), Maintenance: kube.UnderMaintenance(node),
		ControlPlane: kube.ControlPlane(node) || p.Node != "" && node.Name == p.Node,
		Ready:        ready(node),
	}
	n.Silent, n.Limit, n.Heard = p.ear.of(node.Name)
	return n
}

// mayBeAnother reports whether the later boot that a Node shows may be another machine's, because other Nodes have its system UUID too. About
// the Node object of the fence itself the UUID says what it says. Where the hardware behind the node's own switch has confirmed it, another Node must
// have the same from its own. Once evidence has ended the boot of the fence, another boot under the name is not that one, whichever machine runs it:
// the fence takes nothing more, and a kubelet that claims the UUID does not keep it from its end.
func (t *turn) mayBeAnother(ctx context.Context, shown fencing.Boot) bool {
	fence := fenceState(t.fence)
	if shown.NodeUID == fence.Boot.NodeUID || shown.Since(fence.Boot) != fencing.Rebooted || fence.Proven() {
		return false
	}
	source := &fencingv1.FenceSource{}
	if t.client.Get(ctx, client.ObjectKey{Name: t.fence.Spec.NodeName}, source) == nil && boundSource(source).Machine == shown.Machine {
		twin, err := t.twin(ctx, source)
		return err != nil || twin
	}
	nodes := &corev1.NodeList{}
	err := t.client.List(ctx, nodes, client.UnsafeDisableDeepCopy)
	return err != nil || carried(nodes, shown)
}

// readLease reads the lease of the node. One that says something else than when the node was suspected is a sign of life.
func (t *turn) readLease(ctx context.Context, seen *fencing.Observed) {
	lease := &coordinationv1.Lease{}
	err := t.live.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: t.fence.Spec.NodeName}, lease)
	switch {
	case err == nil:
		t.ear.heard(lease)
		seen.Renewal = renewal(lease)
		seen.Renewed = seen.Renewal != kube.FenceRenewal(t.fence)
	case !apierrors.IsNotFound(err):
		seen.Exists = fencing.Unknown // not silent, as far as is known
		return
	}
	if !seen.Renewed {
		t.mem.alive = time.Time{}
	} else if t.mem.alive.IsZero() || t.mem.aliveAs != seen.Now.NodeUID { // a kubelet that registers again has not listed its mounts yet
		t.mem.alive, t.mem.aliveAs = t.now(), seen.Now.NodeUID
	}
	if again := t.ear.aliveSince(t.fence.Spec.NodeName); again.After(t.mem.alive) && seen.Renewed { // a node that flaps has not lived on meanwhile
		t.mem.alive = again
	}
	seen.AliveSince = t.mem.alive
	silent, limit, known := t.ear.of(t.fence.Spec.NodeName)
	seen.Silent = known && silent >= limit
}

// readAnswers takes the answers of the fencer from the record: those to this process. The time of an answer is when this process asked.
func (t *turn) readAnswers(source *fencing.Source) {
	for i := range t.fence.Status.Evidence {
		e := &t.fence.Status.Evidence[i]
		asked, own := t.mem.asked[e.Nonce]
		if !own {
			continue
		}
		if asked.Before(source.Status.Asked) {
			continue
		}
		source.Status = fencing.Answer{Power: powerOf(e), Asked: asked, Took: time.Duration(e.TookMilliseconds) * time.Millisecond, Raw: e.Raw}
		if e.BootID == t.fence.Spec.BootID {
			source.Status.Machine = e.MachineID
		} else {
			source.Status.Power = fencing.PowerUnknown
		}
	}
	source.Running = t.awaits()
}

// awaits reports whether the record has a question or a command of this process that may still be answered. The record, because a write that was
// refused has stored none. A command that the fencer holds back is not waited for as long as one that it may have sent.
func (t *turn) awaits() bool {
	pending := func(nonce string, within time.Duration) bool {
		asked, own := t.mem.asked[nonce]
		return own && t.now().Sub(asked) < within && !t.answered(nonce)
	}
	if q := t.fence.Status.Question; q != nil && pending(q.Nonce, t.answerWithin) {
		return true
	}
	return slices.ContainsFunc(lastOf(t.fence.Status.Intents, 1), func(i fencingv1.Intent) bool {
		within := sendWithin
		if i.Nonce == t.sent {
			within = t.answerWithin
		}
		return pending(i.Nonce, within)
	})
}

// answered reports whether the record has the answer to a question or a command.
func (t *turn) answered(nonce string) bool {
	return slices.ContainsFunc(t.fence.Status.Evidence, func(e fencingv1.Evidence) bool { return e.Nonce == nonce })
}

// list reads what is left of the boot. The VolumeAttachments are read from the API server itself only when the cache has none left, because
// there may be very many of them: what the cache has is deleted by UID and version anyway.
func (t *turn) list(ctx context.Context) error {
	left := &remains{}
	pods := &corev1.PodList{}
	if err := t.live.List(ctx, pods, client.MatchingFields{"spec.nodeName": t.fence.Spec.NodeName}); err != nil {
		return fmt.Errorf("list the pods of the node: %w", err)
	}
	first := t.mem.bound == nil || !t.mem.boundAt.Equal(t.mem.tainted)
	if first {
		t.mem.bound, t.mem.boundAt = map[types.UID]bool{}, t.mem.tainted
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if first {
			t.mem.bound[pod.UID] = true
		}
		left.pods = append(left.pods, fencing.Pod{
			Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID),
			Leaving: pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0,
			Volume:  kube.HasVolumes(pod), Returns: returns(pod), Late: !t.mem.bound[pod.UID],
		})
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := t.client.List(ctx, attachments, client.MatchingFields{byNode: t.fence.Spec.NodeName}); err != nil {
		return fmt.Errorf("list the VolumeAttachments of the node in the cache: %w", err)
	}
	if left.attachments = t.ofBoot(attachments); len(left.attachments) == 0 {
		if err := t.live.List(ctx, attachments); err != nil {
			return fmt.Errorf("list VolumeAttachments: %w", err)
		}
		left.attachments = t.ofBoot(attachments)
	}
	t.mem.left = left
	return nil
}

// returns reports whether a pod claims to be a mirror pod, which the kubelet owns, or to be of a DaemonSet, which would create it again at once.
func returns(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return kube.MirrorPod(pod) || owner != nil && owner.Kind == "DaemonSet"
}

// ofBoot returns the VolumeAttachments of the node that were not made for another boot. Once another machine has the name, one without a
// record may be that machine's.
func (t *turn) ofBoot(list *storagev1.VolumeAttachmentList) (left []fencing.Attachment) {
	replaced := t.later || t.node != nil && bootOf(t.node).Replaces(kube.FencedBoot(t.fence))
	for i := range list.Items {
		va := &list.Items[i]
		boot := va.Annotations[kube.BootIDAnnotation]
		if va.Spec.NodeName != t.fence.Spec.NodeName || boot != t.fence.Spec.BootID && (boot != "" || replaced) {
			continue
		}
		a := fencing.Attachment{Name: va.Name, UID: string(va.UID), Version: va.ResourceVersion, Deleting: va.DeletionTimestamp != nil}
		a.Unfenced = va.Annotations[kube.UnfencedBootAnnotation] == t.fence.Spec.BootID
		if volume, ok := kube.VolumeOfAttachment(va); ok {
			a.Volume = fencing.Volume{Driver: volume.Driver, Handle: volume.Handle}
		}
		left = append(left, a)
	}
	return left
}
