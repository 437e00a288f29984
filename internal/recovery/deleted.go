package recovery

import (
	"context"
	"fmt"
	"time"

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

// deletedEvery is how often the VolumeAttachments are searched for those of nodes that have no Node object: there may be very many.
const deletedEvery = 2 * time.Second

// deleted returns the nodes without a Node object whose VolumeAttachments are left.
func (d *detector) deleted(ctx context.Context, nodes map[string]*corev1.Node, sources *fencingv1.FenceSourceList, fences *fencingv1.NodeFenceList) ([]fencing.Node, error) {
	if now := d.now(); d.searched.IsZero() || now.Sub(d.searched) >= deletedEvery {
		attachments := &storagev1.VolumeAttachmentList{}
		if err := d.client.List(ctx, attachments, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list VolumeAttachments in the cache: %w", err)
		}
		d.searched, d.departed = now, bootsWithoutNode(attachments, nodes, sources, fences)
	}
	var found []fencing.Node
	for name, boot := range d.departed {
		if nodes[name] == nil {
			found = append(found, fencing.Node{Boot: boot, Deleted: true})
		}
	}
	return found, nil
}

// bootsWithoutNode returns, by node, the boot that VolumeAttachments record whose Node is gone: the one that the node's power switch is bound
// to, else the one of the newest VolumeAttachment: belay-controller alone writes that, where the drivers of the attachers' accounts are stated (policy
// belay-driver-attachments). One that is not recorded whole, of which no fence can begin, comes last. One that has no fence yet comes before one that has. A boot whose fence a client has deleted is none. Another attach/detach
// controller records none: then it is what the switch is bound to.
func bootsWithoutNode(attachments *storagev1.VolumeAttachmentList, nodes map[string]*corev1.Node, sources *fencingv1.FenceSourceList, fences *fencingv1.NodeFenceList) map[string]fencing.Boot {
	bound := map[string]fencing.Boot{}
	for i := range sources.Items {
		bound[sources.Items[i].Name] = boundSource(&sources.Items[i]).SaidOn
	}
	open := map[string][]*fencingv1.NodeFence{}
	for _, f := range pointers(fences) {
		open[f.Spec.NodeName] = append(open[f.Spec.NodeName], f)
	}
	all, unfenced := departed{}, departed{}
	for i := range attachments.Items {
		va := &attachments.Items[i]
		name := va.Spec.NodeName
		if nodes[name] != nil || va.DeletionTimestamp != nil { // others detach it: as fencing.Decide counts what is left
			continue
		}
		boot := kube.RecordedBoot(va)
		if boot.ID == "" && boot.Machine == "" && bound[name].ID != "" {
			boot = bound[name]
		}
		if va.Annotations[kube.UnfencedBootAnnotation] == boot.ID && boot.ID != "" {
			continue // a client has deleted the fence of this boot
		}
		all.take(boot, bound[name], va.CreationTimestamp)
		if kube.StandingFence(open[name], boot) == nil {
			unfenced.take(boot, bound[name], va.CreationTimestamp)
		}
	}
	found := map[string]fencing.Boot{}
	for name := range all {
		found[name] = all[name].boot
		if next, ok := unfenced[name]; ok {
			found[name] = next.boot
		}
	}
	return found
}

// departed has a boot for each node, and when the newest VolumeAttachment of it was made.
type departed map[string]struct {
	boot fencing.Boot
	at   metav1.Time
}

// take takes a boot if it comes before the one that is known.
func (d departed) take(boot, bound fencing.Boot, at metav1.Time) {
	known, ok := d[boot.Node]
	newer := known.boot.Complete() == boot.Complete() && known.at.Before(&at) || boot.Complete() && !known.boot.Complete()
	if !ok || known.boot != bound && (boot == bound || newer) {
		known.boot, known.at = boot, at
		d[boot.Node] = known
	}
}

// leftBehind reports whether the API server itself has VolumeAttachments of a boot without a Node: those in the cache may be from before a fence
// of the boot was deleted.
func (d *detector) leftBehind(ctx context.Context, boot fencing.Boot) (bool, error) {
	attachments, sources, fences := &storagev1.VolumeAttachmentList{}, &fencingv1.FenceSourceList{}, &fencingv1.NodeFenceList{}
	if err := d.live.List(ctx, attachments); err != nil {
		return false, fmt.Errorf("list VolumeAttachments: %w", err)
	}
	if err := d.client.List(ctx, sources, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list FenceSources in the cache: %w", err)
	}
	if err := d.client.List(ctx, fences, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list NodeFences in the cache: %w", err)
	}
	return bootsWithoutNode(attachments, nil, sources, fences)[boot.Node] == boot, nil
}

// absent sets when the API server itself said that there is no Node. If there is one, the node is decided on as a silent one.
func (d *detector) absent(ctx context.Context, n *fencing.Node) error {
	at := d.now()
	err := d.live.Get(ctx, client.ObjectKey{Name: n.Boot.Node}, &corev1.Node{})
	switch {
	case apierrors.IsNotFound(err):
		n.ReadAt = at
	case err != nil:
		return fmt.Errorf("read node %s: %w", n.Boot.Node, err)
	default:
		n.Deleted = false
	}
	return nil
}

// nodeRef is a Node that does not exist, for events about it.
func nodeRef(b fencing.Boot) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: b.Node, UID: types.UID(b.NodeUID)}}
}
