package recovery

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
)

// switchOff sends the command if the fencer itself may. While it may not, it answers what is asked.
func (f *fencer) switchOff(ctx context.Context, state *sourceState, source *fencingv1.FenceSource, fence *fencingv1.NodeFence, r fencing.Requested) (time.Duration, error) {
	may, err := f.reserve(ctx, source, fence, &r)
	switch {
	case err != nil:
		return 0, err
	case may.Suspected:
		return lookEvery, f.call(ctx, state, source, fence, r, r.Fence.Intent.Nonce, true)
	}
	after, err := f.reportHeld(ctx, state, source, fence, &r, may)
	if err == nil && r.Asked(f.now()) {
		err = f.call(ctx, state, source, fence, r, r.Question.Nonce, false)
	}
	return after, err
}

// commandFor is the record of a command that is about to be sent. A machine that ignores a command gets it again: the fence counts from the first, as
// the detector counts it from its begin.
func (f *fencer) commandFor(source *fencingv1.FenceSource, fence *fencingv1.NodeFence, nonce string) *fencingv1.SentCommand {
	c := &fencingv1.SentCommand{Nonce: nonce, Fence: string(fence.UID), By: f.identity, Time: micro(f.now())}
	if before := source.Status.Command; before != nil && before.Fence == c.Fence {
		c.Time = before.Time
	}
	return c
}

// reserve decides whether the fencer itself may switch the node off, and takes a place of its brake if it may. It is what a client cannot get around that
// has the rights of the other parts: it rests on the leases, and on what only the fencer writes.
func (f *fencer) reserve(ctx context.Context, source *fencingv1.FenceSource, fence *fencingv1.NodeFence, r *fencing.Requested) (fencing.Suspicion, error) {
	node, asked := r.Fence.Boot.Node, f.asked(ctx, fence)
	f.mu.Lock()
	defer f.mu.Unlock()
	fleet, err := f.heard(ctx)
	if err != nil {
		return fencing.Suspicion{}, err
	}
	n := fencing.Node{Boot: r.Now}
	n.Silent, n.Limit, n.Heard = f.ear.of(node)
	s := fencing.MaySwitchOff(f.now(), f.Brakes, fleet, r.Fence.Boot, n, asked)
	if s.Suspected {
		f.commanded[node] = f.commandFor(source, fence, r.Fence.Intent.Nonce).Time.Time
	}
	return s, nil
}

// asked reports whether a person has asked for the power-off, as an admission policy has made sure: the detector and the actor may not.
func (f *fencer) asked(ctx context.Context, fence *fencingv1.NodeFence) bool {
	if fence.Spec.Request == nil {
		return false
	}
	err := f.unguarded(ctx, requestPolicy, fence.CreationTimestamp.Time)
	if err != nil {
		log.FromContext(ctx).Info("The request for a power-off counts as a fence of a silent node: nothing shows that its author may make it", "reason", err.Error())
	}
	return err == nil
}

// heard returns how long each node has been silent for the fencer, and the commands that it, or an earlier process, has sent.
func (f *fencer) heard(ctx context.Context) (fencing.Fleet, error) {
	fleet := fencing.Fleet{}
	nodes, sources := &corev1.NodeList{}, &fencingv1.FenceSourceList{}
	for _, list := range []client.ObjectList{nodes, sources} {
		if err := f.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fleet, fmt.Errorf("list nodes and power switches in the cache: %w", err)
		}
	}
	for i := range nodes.Items {
		fleet.Nodes = append(fleet.Nodes, f.describe(&nodes.Items[i]))
	}
	maps.DeleteFunc(f.commanded, func(_ string, at time.Time) bool { return f.now().Sub(at) >= f.Brakes.Window }) // they count no more
	fleet.Commanded = maps.Clone(f.commanded)
	for i := range sources.Items {
		if c := sources.Items[i].Status.Command; c != nil && c.Time.After(fleet.Commanded[sources.Items[i].Name]) {
			fleet.Commanded[sources.Items[i].Name] = c.Time.Time
		}
	}
	return fleet, nil
}

// reportHeld reports once why a command is not sent yet, unless the node is about to have been silent for long enough. It returns when to look again.
func (f *fencer) reportHeld(ctx context.Context, state *sourceState, source *fencingv1.FenceSource, fence *fencingv1.NodeFence, r *fencing.Requested, s fencing.Suspicion) (time.Duration, error) {
	nonce := r.Fence.Intent.Nonce
	soon := s.Reason == fencing.SilenceTooShort && s.After > 0
	if held := (heldCommand{nonce, s.Reason}); state.held != held {
		state.held = held
		log.FromContext(ctx).Info("Did not switch off yet", "reason", s.Reason, "nonce", nonce)
		if !soon {
			f.events.Eventf(nodeRef(r.Fence.Boot), fence, corev1.EventTypeWarning, string(fencing.SwitchOffHeld), "Fence", "%s", explain.FenceHeld(s.Reason))
		}
	}
	if soon {
		return min(s.After, lookEvery), nil
	}
	before := source.DeepCopy()
	meta.SetStatusCondition(&source.Status.Conditions, metav1.Condition{
		Type: conditionHeld, Status: metav1.ConditionTrue, Reason: string(s.Reason), Message: explain.FenceHeld(s.Reason), ObservedGeneration: source.Generation,
	})
	return lookEvery, f.storeSource(ctx, source, before)
}

// heldCommand is a command that was not sent, and why.
type heldCommand struct {
	nonce  string
	reason decision.Reason
}
