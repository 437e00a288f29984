package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// LeaveLease is for how long Leave keeps the detector's lease after it has succeeded: longer than it takes to delete the Deployments. If they
// stay, a detector leads again after that.
const LeaveLease = 2 * time.Minute

// leaver is the name of Leave in the detector's lease.
const leaver = "belay-controller leave"

// Leave prepares the removal of recovery, and fails, with what to do, while something of it would be left half done. It takes the detector's
// lease, so that no fence begins any more, and then releases the fences that are finished: their taints, and the finalizers that only an actor
// removes. Nothing needs to be undone if it ends early.
func Leave(ctx context.Context, c client.Client, detector client.ObjectKey) (err error) {
	if _, err := finishedFences(ctx, c); err != nil { // before anything is stopped
		return err
	}
	free, err := takeLease(ctx, c, detector)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, free(context.WithoutCancel(ctx)))
		}
	}()
	fences, err := finishedFences(ctx, c)
	if err != nil {
		return err
	}
	for i := range fences {
		if err := releaseFence(ctx, c, fences[i].Name); err != nil {
			return fmt.Errorf("release NodeFence %s: %w", fences[i].Name, err)
		}
	}
	return taintsLeft(ctx, c)
}

// finishedFences returns all NodeFences, of which none has work left but that of Released and Cancelled.
func finishedFences(ctx context.Context, c client.Client) ([]fencingv1.NodeFence, error) {
	fences := &fencingv1.NodeFenceList{}
	err := c.List(ctx, fences)
	switch {
	case meta.IsNoMatchError(err): // the CustomResourceDefinition was deleted, and its objects with it
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list NodeFences: %w", err)
	}
	var unfinished []string
	for i := range fences.Items {
		f := &fences.Items[i]
		if p := fenceState(f).Phase; p != fencing.Released && p != fencing.Cancelled {
			unfinished = append(unfinished, fmt.Sprintf("%s (%s)", f.Name, p))
		}
	}
	if len(unfinished) > 0 {
		return nil, errors.New(explain.LeaveUnfinished(unfinished))
	}
	return fences.Items, nil
}

// takeLease has no detector lead: it returns once the one that led has stopped by itself, and free lets the next one lead at once. Without
// a lease no detector has led.
func takeLease(ctx context.Context, c client.Client, key client.ObjectKey) (free func(context.Context) error, err error) {
	hold := func(ctx context.Context, by string, seconds int32) (before coordinationv1.LeaseSpec, err error) {
		for {
			lease := &coordinationv1.Lease{}
			if err := c.Get(ctx, key, lease); err != nil {
				return before, client.IgnoreNotFound(err)
			}
			before = *lease.Spec.DeepCopy()
			now := metav1.NowMicro()
			lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.AcquireTime, lease.Spec.RenewTime = &by, &seconds, &now, &now
			if err = c.Update(ctx, lease); !apierrors.IsConflict(err) { // the leader has renewed it
				return before, err
			}
		}
	}
	before, err := hold(ctx, leaver, int32(LeaveLease/time.Second))
	if err != nil {
		return nil, fmt.Errorf("take the lease %s, so that no fence begins: %w", key, err)
	}
	free = func(ctx context.Context) error {
		if _, err := hold(ctx, "", 1); err != nil {
			return fmt.Errorf("give the lease %s back: %w", key, err)
		}
		return nil
	}
	if before.HolderIdentity == nil || *before.HolderIdentity == "" || *before.HolderIdentity == leaver || before.LeaseDurationSeconds == nil {
		return free, nil
	}
	select {
	case <-time.After(time.Duration(*before.LeaseDurationSeconds) * time.Second): // by then it no longer writes: kube.Lease
		return free, nil
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("wait until the detector %s has stopped: %w", *before.HolderIdentity, ctx.Err()), free(context.WithoutCancel(ctx)))
	}
}

// releaseFence carries out what is left of a finished fence, as the actor does, which may do so at the same time.
func releaseFence(ctx context.Context, c client.Client, name string) error {
	p := &parts{client: c, live: c, now: time.Now}
	t := &turn{actor: &actor{parts: p}, fence: &fencingv1.NodeFence{}, mem: &memory{}}
	for range maxDecisions {
		if err := c.Get(ctx, client.ObjectKey{Name: name}, t.fence); err != nil || finished(t.fence) {
			return client.IgnoreNotFound(err)
		}
		seen := fencing.Observed{ReadAt: p.now()}
		t.readNode(ctx, &seen)
		state := fenceState(t.fence)
		state.Deleting = false // what keeps the next fence from beginning is that there is no detector
		for _, step := range fencing.Decide(p.now(), state, seen).Steps {
			if err := t.act(ctx, step); err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	return errors.New("the Node cannot be read, or other clients write to it or to the fence all the time")
}

// taintsLeft fails if a Node has a taint of recovery: nothing would remove it.
func taintsLeft(ctx context.Context, c client.Client) error {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	var tainted []string
	for i := range nodes.Items {
		if slices.ContainsFunc(nodes.Items[i].Spec.Taints, func(x corev1.Taint) bool {
			return (x.Key == kube.IsolationTaint || x.Key == kube.OutOfServiceTaint) && strings.HasPrefix(x.Value, kube.FenceTaintPrefix)
		}) {
			tainted = append(tainted, nodes.Items[i].Name)
		}
	}
	if len(tainted) > 0 {
		return errors.New(explain.LeaveTainted(tainted))
	}
	return nil
}
