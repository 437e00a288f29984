package recovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// occupants finds out what the pods of a silent node say: whether it has anything to lose, and whether the cluster has given it up. Nothing but a list that
// the API server has answered says that there are none. Where something is attached, pods that cannot be listed hold back no fence: tenants write them.
func (d *detector) occupants(ctx context.Context, n *fencing.Node, node *corev1.Node) error {
	attached, err := d.attached(ctx, node)
	if err != nil {
		return err
	}
	pods := &corev1.PodList{}
	switch err := d.live.List(ctx, pods, client.MatchingFields{"spec.nodeName": node.Name}); {
	case err != nil && attached:
		log.FromContext(ctx).Error(err, "Cannot see whether the cluster has given a node up", "node", node.Name)
	case err != nil:
		return fmt.Errorf("list the pods of node %s: %w", node.Name, err)
	}
	for i := range pods.Items {
		o := d.occupant(&pods.Items[i], n.Silent)
		n.GivenUp = n.GivenUp || o.GivesUp(n.Silent)
		attached = attached || o.Keeps()
	}
	n.Idle = decision.Known(!attached)
	return nil
}

// attached reports whether a volume is attached to the node, or in use there, as a VolumeAttachment or the Node says.
func (d *detector) attached(ctx context.Context, node *corev1.Node) (bool, error) {
	if len(node.Status.VolumesAttached)+len(node.Status.VolumesInUse) > 0 {
		return true, nil
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := d.client.List(ctx, attachments, client.UnsafeDisableDeepCopy, client.MatchingFields{byNode: node.Name}); err != nil {
		return false, fmt.Errorf("list the VolumeAttachments of node %s in the cache: %w", node.Name, err)
	}
	shown := bootOf(node)
	return slices.ContainsFunc(attachments.Items, func(va storagev1.VolumeAttachment) bool {
		return !shown.Replaces(kube.RecordedBoot(&va)) // an earlier machine of the name has it
	}), nil
}

// occupant returns what a pod says of its node.
func (d *detector) occupant(pod *corev1.Pod, silent time.Duration) fencing.Occupant {
	o := fencing.Occupant{
		Storage: kube.HasStorage(pod), Returns: returns(pod), Ended: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Evicted: slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return evicted(c) && d.serverTime().Sub(c.LastTransitionTime.Time) <= silent // not in another silence
		}),
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		o.Expired, o.Grace = d.serverTime().Sub(pod.DeletionTimestamp.Time), time.Duration(*pod.DeletionGracePeriodSeconds)*time.Second
	}
	return o
}

// evicted reports whether a condition of a pod says that the taint manager has evicted it (k/k v1.36.3
// pkg/controller/tainteviction/taint_eviction.go:136-141, KEP-3329).
func evicted(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByTaintManager"
}

// leaving reports whether something says that the machine of a node is being stopped on purpose: the Node, as it was read live, or the object of its machine.
func (d *detector) leaving(ctx context.Context, node *corev1.Node) bool {
	if kube.TakedownOf(node) != (kube.Takedown{}) {
		return true
	}
	ref := kube.MachineObject(node)
	if ref == nil || d.unserved(ref) {
		return false
	}
	machine := &metav1.PartialObjectMetadata{}
	machine.SetGroupVersionKind(ref.GroupVersionKind)
	switch err := d.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, machine); {
	case err == nil:
		return machine.DeletionTimestamp != nil
	case meta.IsNoMatchError(err): // it is in another cluster
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.noKind == nil {
			d.noKind = map[string]time.Time{}
		}
		d.noKind[ref.Group] = d.now()
	case !apierrors.IsNotFound(err): // it holds back nothing: a kubelet says which object that is
		log.FromContext(ctx).Error(err, "Cannot see whether a machine is being deleted", "node", node.Name, "kind", ref.Kind, "machine", ref.Namespace+"/"+ref.Name)
	}
	return false
}

// unserved reports whether this cluster was found to lack the kind of a machine a moment ago. To find that out takes a discovery of the API.
func (d *detector) unserved(ref *kube.MachineRef) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.noKind[ref.Group]
	return known && d.now().Sub(at) < time.Minute
}

// keepAnnouncement is how long an announcement is remembered, at most.
const keepAnnouncement = time.Hour

// announced reports whether the stop of the machine was announced in this silence: the node lifecycle controller overwrites what kubelet said when it marks
// the node (k/k v1.36.3 pkg/controller/nodelifecycle/node_lifecycle_controller.go:950-954).
func (d *detector) announced(ctx context.Context, n *fencing.Node, node *corev1.Node) bool {
	leaving := d.leaving(ctx, node)
	d.mu.Lock()
	defer d.mu.Unlock()
	if leaving {
		if d.left == nil {
			d.left = map[fencing.Boot]time.Time{}
		}
		d.left[n.Boot] = d.now()
	}
	at, known := d.left[n.Boot]
	return known && d.now().Sub(at) <= n.Silent
}
