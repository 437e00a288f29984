package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
)

// nodeLeaseFor is how long a lease of a node lasts that the detector took. It is what others wait if the detector does not run any more.
const nodeLeaseFor = 2 * time.Minute

// nodeLeaseLag is how long the cache may lack a fence for which a lease was taken.
const nodeLeaseLag = 10 * time.Second

// asker is what asks for the fence of a node: the holders of its lease for whom it does.
type asker struct{ holders []string }

// nodeLease reads the lease of a node by which medik8s' operators agree on who works on it, nil if there is none.
func (d *detector) nodeLease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := d.live.Get(ctx, client.ObjectKey{Namespace: d.NodeLeases, Name: kube.NodeLeaseName(node)}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("read the lease %s/%s: %w", d.NodeLeases, kube.NodeLeaseName(node), err)
	}
	return lease, nil
}

// leased reports whether another component has the node, and not the one that asks for the fence.
func (d *detector) leased(ctx context.Context, node string) (bool, error) {
	if d.NodeLeases == "" {
		return false, nil
	}
	lease, err := d.nodeLease(ctx, node)
	if err != nil || lease == nil {
		return false, err
	}
	holder := kube.NodeLeaseHolder(lease, d.serverTime())
	return holder != "" && holder != Name && !slices.Contains(d.asks[node].holders, holder), nil
}

// takeLease takes the lease of a node that is about to be fenced, unless the component has it that asks for that. It reports whether no other has it.
func (d *detector) takeLease(ctx context.Context, node *corev1.Node) (bool, error) {
	if d.NodeLeases == "" {
		return true, nil
	}
	now := d.serverTime()
	lease, err := d.nodeLease(ctx, node.Name)
	if err != nil {
		return false, err
	}
	if lease == nil {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: d.NodeLeases, Name: kube.NodeLeaseName(node.Name)}}
	}
	if holder := kube.NodeLeaseHolder(lease, now); holder != "" && holder != Name {
		return slices.Contains(d.asks[node.Name].holders, holder), nil
	}
	kube.HoldNodeLease(lease, Name, now, nodeLeaseFor)
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	if lease.ResourceVersion == "" {
		err = d.client.Create(ctx, lease)
	} else {
		err = d.client.Update(ctx, lease)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil // another component was first
	}
	if err != nil {
		return false, fmt.Errorf("take the lease %s/%s: %w", d.NodeLeases, lease.Name, err)
	}
	d.leases[node.Name] = d.now()
	return true, nil
}

// keepLeases renews the leases of the nodes whose fences are active, and releases those of others: a machine whose volumes have moved, or about which nothing
// can be proven, is left to other remediators. One lease a tick, since a tick must not take long.
func (d *detector) keepLeases(ctx context.Context) {
	if d.NodeLeases == "" || d.DryRun {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	for _, node := range slices.Sorted(maps.Keys(d.takes)) {
		if taken, known := d.leases[node]; !known || d.now().Sub(taken) >= nodeLeaseFor/4 {
			d.leases[node] = d.now() // tried
			d.renewLease(ctx, node)
			return
		}
	}
	for _, node := range slices.Sorted(maps.Keys(d.leases)) {
		if !d.takes[node] && d.now().Sub(d.leases[node]) >= nodeLeaseLag {
			delete(d.leases, node)
			d.freeLease(ctx, node)
			return
		}
	}
}

func (d *detector) renewLease(ctx context.Context, name string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := d.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if err == nil {
		_, err = d.takeLease(ctx, node)
	}
	if client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Error(err, "Cannot renew the lease of a node", "node", name)
	}
}

// freeLease deletes the lease of a node if the detector has it, as medik8s does (medik8s/common v1.17.0 pkg/lease/manager.go:221-239).
func (d *detector) freeLease(ctx context.Context, node string) {
	lease, err := d.nodeLease(ctx, node)
	if err == nil && lease != nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == Name {
		err = d.client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	}
	if client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Error(err, "Cannot give the lease of a node back: it expires", "node", node)
	}
}
