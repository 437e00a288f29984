package recovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// A fence is about a boot. Several machines may have had the name of a node, and each may have a fence of its own: what belongs to a node, such as its lease and its
// power switch, belongs to all of them.

// nodeOfFence is what the index byNode has of a NodeFence.
func nodeOfFence(object client.Object) []string {
	return []string{object.(*fencingv1.NodeFence).Spec.NodeName}
}

// fencesOf returns the NodeFences of a node in the cache. They are shared, and not to be changed.
func (p *parts) fencesOf(ctx context.Context, node string) ([]*fencingv1.NodeFence, error) {
	fences := &fencingv1.NodeFenceList{}
	if err := p.client.List(ctx, fences, client.MatchingFields{byNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the NodeFences of node %s in the cache: %w", node, err)
	}
	return pointers(fences), nil
}

func pointers(fences *fencingv1.NodeFenceList) (all []*fencingv1.NodeFence) {
	for i := range fences.Items {
		all = append(all, &fences.Items[i])
	}
	return all
}

// fenced maps a Node or a Lease to the NodeFences of its name.
func (p *parts) fenced() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		return p.fenceOf(ctx, object.GetName())
	})
}

func (p *parts) fenceOf(ctx context.Context, node string) (all []reconcile.Request) {
	if node == "" {
		return nil
	}
	fences, err := p.fencesOf(ctx, node)
	if err != nil {
		return nil
	}
	for _, f := range fences {
		all = append(all, request(f.Name)...)
	}
	return all
}

// ofFencedNode maps a NodeFence to its node.
func ofFencedNode() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		return request(nodeOfFence(object)[0])
	})
}

// epochOf is the epoch in the value of a taint of a fence, zero in another one.
func epochOf(value string) int64 {
	text, _ := strings.CutPrefix(value, kube.FenceTaintPrefix)
	epoch, _ := strconv.ParseInt(text, 10, 64)
	return epoch
}

// readOthers finds out what the other fences of the name say about this one. Whether it is doubled is read from the API server itself before it does anything: two
// creates may both be carried out that each found the name free. After that the cache will do, until something was commanded or taken.
func (t *turn) readOthers(ctx context.Context, seen *fencing.Observed) error {
	own := kube.FencedBoot(t.fence)
	others, err := t.fencesOf(ctx, own.Node)
	if err != nil {
		return err
	}
	t.later = slices.ContainsFunc(others, func(f *fencingv1.NodeFence) bool {
		return !finished(f) && f.Spec.Epoch > t.fence.Spec.Epoch && kube.FencedBoot(f).Replaces(own)
	})
	seen.Later = t.later
	switch state := fenceState(t.fence); {
	case !state.MayEnd():
		return nil
	case state.Phase == fencing.Suspected:
		all := &fencingv1.NodeFenceList{}
		if err := t.live.List(ctx, all); err != nil {
			return fmt.Errorf("list NodeFences: %w", err)
		}
		others = pointers(all)
	}
	seen.Doubled = slices.ContainsFunc(others, t.doubledBy)
	return nil
}

// doubledBy reports whether another fence of the machine goes before this one: the one that has come further, or else the one with the higher epoch. Each of two
// may have found no other one before it began, since what each of them reads and writes is another object.
func (t *turn) doubledBy(f *fencingv1.NodeFence) bool {
	if f.UID == t.fence.UID || !kube.FenceStands(f, kube.FencedBoot(t.fence)) || fenceState(f).Phase == fencing.Cancelled {
		return false
	}
	return cmp.Or(
		cmp.Compare(came(f), came(t.fence)), cmp.Compare(f.Spec.Epoch, t.fence.Spec.Epoch), cmp.Compare(f.UID, t.fence.UID),
	) > 0
}

// came is how far a fence has come: it has done nothing, has isolated its Node, or has commanded or taken something.
func came(f *fencingv1.NodeFence) int {
	switch state := fenceState(f); {
	case state.Phase == fencing.Suspected:
		return 0
	case state.MayEnd():
		return 1
	}
	return 2
}

// readEarlier finds out whether VolumeAttachments of the node are left that record another machine. Beside kube-controller-manager the taint would release
// them too: it takes all that the name has for the Node's.
func (t *turn) readEarlier(ctx context.Context, seen *fencing.Observed) error {
	if !t.BesideUpstream || t.node == nil {
		return nil
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := t.client.List(ctx, attachments, client.MatchingFields{byNode: t.fence.Spec.NodeName}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the VolumeAttachments of the node in the cache: %w", err)
	}
	seen.Earlier = slices.ContainsFunc(attachments.Items, func(va storagev1.VolumeAttachment) bool {
		return va.DeletionTimestamp == nil && kube.FencedBoot(t.fence).Replaces(kube.RecordedBoot(&va))
	})
	return nil
}

// speaksOf are the levels that count for a fence although their hardware gives no identity: none of them while the Node shows another machine. An outlet stays
// where it is when a server is replaced, and feeds the next one.
func (f *fencer) speaksOf(ctx context.Context, source *fencingv1.FenceSource, r *fencing.Requested) []int32 {
	node, fenced := &corev1.Node{}, r.Fence.Boot
	replaced := f.client.Get(ctx, client.ObjectKey{Name: fenced.Node}, node) == nil && bootOf(node).Replaces(fenced)
	if replaced || r.Now.Replaces(fenced) {
		return nil
	}
	return knownLevels(source)
}

// open returns the fences of a node that are not over, as the API server has them now, that of the boot to which the switch is bound first.
func (f *fencer) open(ctx context.Context, source *fencingv1.FenceSource) (open []*fencingv1.NodeFence, err error) {
	cached, err := f.fencesOf(ctx, source.Name)
	if err != nil {
		return nil, err
	}
	for _, c := range cached {
		fence := &fencingv1.NodeFence{}
		switch err := f.live.Get(ctx, client.ObjectKey{Name: c.Name}, fence); {
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("read NodeFence %s: %w", c.Name, err)
		case err == nil && !finished(fence):
			open = append(open, fence)
		}
	}
	bound := boundSource(source).SaidOn
	slices.SortStableFunc(open, func(a, b *fencingv1.NodeFence) int {
		switch {
		case kube.FencedBoot(a) == bound:
			return -1
		case kube.FencedBoot(b) == bound:
			return 1
		}
		return 0
	})
	return open, nil
}
