package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// Fence carries out a plan, if the NodeFence is still the one that was looked at. dryRun asks the API server, and so the admission policy,
// to check the request and store nothing.
func (r *Reader) Fence(ctx context.Context, p diagnosis.FencePlan, dryRun bool) error {
	var all []string
	if dryRun {
		all = []string{metav1.DryRunAll}
	}
	switch p.Action {
	case diagnosis.StatePoweredOff:
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion},
			"spec":     map[string]any{"statement": p.Statement},
		})
		if err != nil {
			return fmt.Errorf("encode the statement about node %s: %w", p.Node, err)
		}
		err = r.fences.Patch(types.MergePatchType).Resource(string(diagnosis.Fences)).Name(p.FenceName()).
			SpecificallyVersionedParams(&metav1.PatchOptions{DryRun: all}, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).Body(patch).Do(ctx).Error()
		if err != nil {
			return fmt.Errorf("write the statement into NodeFence %s: %w", p.FenceName(), err)
		}
	case diagnosis.DeleteFence:
		return r.deleteFence(ctx, p, all)
	case diagnosis.RequestPowerOff:
		return r.requestPowerOff(ctx, p, all)
	default:
		return fmt.Errorf("nothing to do for NodeFence %s", p.FenceName())
	}
	return nil
}

// deleteFence deletes the NodeFence that was looked at.
func (r *Reader) deleteFence(ctx context.Context, p diagnosis.FencePlan, dryRun []string) error {
	uid := types.UID(p.UID)
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &p.ResourceVersion}, DryRun: dryRun}
	if err := r.fences.Delete().Resource(string(diagnosis.Fences)).Name(p.FenceName()).Body(options).Do(ctx).Error(); err != nil {
		return fmt.Errorf("delete NodeFence %s: %w", p.FenceName(), err)
	}
	return nil
}

// requestPowerOff creates the NodeFence, in place of the record of one that is over. Node and lease are read again right before that: what they say must not
// have changed since the plan was made.
func (r *Reader) requestPowerOff(ctx context.Context, p diagnosis.FencePlan, dryRun []string) error {
	old := &fencingv1.NodeFence{}
	switch err := r.fences.Get().Resource(string(diagnosis.Fences)).Name(p.FenceName()).Do(ctx).Into(old); {
	case apierrors.IsNotFound(err):
		old = &fencingv1.NodeFence{}
	case err != nil:
		return fmt.Errorf("read NodeFence %s again: %w", p.FenceName(), err)
	case string(old.UID) != p.UID || !kube.FenceFinished(old):
		return fmt.Errorf("recovery fences node %s since a moment ago", p.Node)
	}
	shown, err := r.unchanged(ctx, p.Node, p.Request)
	if err != nil {
		return err
	}
	if old.UID != "" {
		if err := r.deleteFence(ctx, p, dryRun); err != nil || len(dryRun) > 0 { // in a dry run it stays, so that the create would only say that
			return err
		}
	}
	fence := &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: p.FenceName(), Finalizers: []string{kube.FenceFinalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: p.Node, NodeUID: p.Request.Boot.NodeUID, BootID: p.Request.Boot.BootID, MachineID: p.Request.Boot.MachineID,
			Epoch: fencing.NextEpoch(r.clock.Now(), max(old.Spec.Epoch, p.Request.Epoch), shown), Trigger: fencingv1.TriggerRequested, LastRenewal: p.Request.LastRenewal, Release: fencingv1.ReleaseAuto,
			Request: &fencingv1.Request{By: p.Request.By, Reason: p.Request.Reason},
		},
	}
	err = r.fences.Post().Resource(string(diagnosis.Fences)).
		SpecificallyVersionedParams(&metav1.CreateOptions{DryRun: dryRun}, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).Body(fence).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("create NodeFence %s: %w", p.FenceName(), err)
	}
	return nil
}

// errAlive is why nothing is written about a node that has changed.
var errAlive = errors.New("the node has changed since it was looked at: it is Ready, has renewed its lease, or runs another boot")

// unchanged reads Node and lease again, and fails unless the node is still silent, not Ready, and of the same boot. It returns the epoch that the Node shows.
func (r *Reader) unchanged(ctx context.Context, name string, was *diagnosis.FenceRequest) (epoch int64, err error) {
	node, err := r.clients.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("read node %s again: %w", name, err)
	}
	said := ""
	switch lease, err := r.clients.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{}); {
	case err == nil:
		said = kube.Renewal(lease)
	case !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("read the lease of node %s again: %w", name, err)
	}
	boot := kube.BootOf(node)
	if kube.Ready(node) || said != was.LastRenewal || boot.NodeUID != was.Boot.NodeUID || boot.ID != was.Boot.BootID || boot.Machine != was.Boot.MachineID {
		return 0, errAlive
	}
	epoch, _ = strconv.ParseInt(node.Annotations[kube.FenceEpochAnnotation], 10, 64)
	return epoch, nil
}
