package recovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

const (
	// remediateAgain is how often a remediation is looked at that belay works on: the silence of a node is no event.
	remediateAgain = time.Second
	// remediateLater is how often one is looked at that belay does not work on, or that has its outcome.
	remediateLater = 15 * time.Second
)

// listAsks finds out which nodes remediations ask for.
func (d *detector) listAsks(ctx context.Context) error {
	d.asks = map[string]asker{}
	if d.NodeLeases == "" {
		return nil
	}
	list := &fencingv1.BelayRemediationList{}
	if err := d.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list BelayRemediations in the cache: %w", err)
	}
	for i := range list.Items {
		if r := &list.Items[i]; kube.RemediationAsks(r) {
			node := kube.RemediatedNode(r)
			d.asks[node] = asker{append(d.asks[node].holders, kube.RemediationLeaseHolders(r)...)}
		}
	}
	return nil
}

// tellAsker keeps why a node was not fenced at this look, for the remediations that ask for it.
func (d *detector) tellAsker(n *fencing.Node, r decision.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !n.Asked {
		delete(d.looked, n.Boot.Node)
		return
	}
	if r == fencing.NotReadLive { // of the moment
		return
	}
	if d.looked == nil {
		d.looked = map[string]decision.Reason{}
	}
	d.looked[n.Boot.Node] = r
}

// lookedAt is why a node was not fenced at the last look; empty if none is known.
func (d *detector) lookedAt(node string) decision.Reason {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.looked[node]
}

// remediationsOf maps a Node or a NodeFence to the remediations of the node.
func (p *parts) remediationsOf(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	node := object.GetName()
	if f, ok := object.(*fencingv1.NodeFence); ok {
		node = f.Spec.NodeName
	}
	list := &fencingv1.BelayRemediationList{}
	if p.client.List(ctx, list, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	for i := range list.Items {
		if r := &list.Items[i]; kube.RemediatedNode(r) == node {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(r)})
		}
	}
	return requests
}

// remediator reports on BelayRemediations. What they ask for is the detector's to begin: all that a remediation reports is derived from the NodeFence, and
// from the Node while there is none.
type remediator struct {
	*parts

	// looked is why the detector does not fence a node that is asked for.
	looked func(node string) decision.Reason
}

// remedied is what is known about one remediation.
type remedied struct {
	object *fencingv1.BelayRemediation
	// fence is the NodeFence of the node, if it is not over or began since the remediation was made; nil for none.
	fence *fencingv1.NodeFence
	// node is the Node, nil if the API server said that there is none.
	node *corev1.Node
	// source is the power switch, without what it answers.
	source fencing.Source
}

// Reconcile brings one remediation up to date.
func (r *remediator) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	x := &remedied{object: &fencingv1.BelayRemediation{}}
	if err := r.live.Get(ctx, q.NamespacedName, x.object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("read BelayRemediation %s: %w", q, err))
	}
	if err := r.read(ctx, x); err != nil {
		return reconcile.Result{}, err
	}
	out := r.outcome(x)
	err := r.keep(ctx, x, out)
	if err == nil && (x.object.DeletionTimestamp == nil || slices.Contains(x.object.Finalizers, kube.RemediationFinalizer)) {
		err = r.store(ctx, x, out)
	}
	if apierrors.IsConflict(err) {
		return again, nil
	}
	after := remediateAgain
	if !out.processing { // a change of its Node or its NodeFence is an event
		after = remediateLater
	}
	return reconcile.Result{RequeueAfter: after}, client.IgnoreNotFound(err)
}

// read reads Node and NodeFence from the API server itself.
func (r *remediator) read(ctx context.Context, x *remedied) error {
	name := kube.RemediatedNode(x.object)
	if len(validation.IsDNS1123Subdomain(name)) > 0 { // there can be no such Node, and no client asks for it
		return nil
	}
	fences, node := &fencingv1.NodeFenceList{}, &corev1.Node{}
	if err := r.live.List(ctx, fences); err != nil {
		return fmt.Errorf("list NodeFences: %w", err)
	}
	switch err := r.live.Get(ctx, client.ObjectKey{Name: name}, node); {
	case err == nil:
		x.node = node
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read node %s: %w", name, err)
	}
	x.choose(pointers(fences), name)
	source := &fencingv1.FenceSource{}
	switch err := r.client.Get(ctx, client.ObjectKey{Name: name}, source); {
	case err == nil:
		x.source = boundSource(source)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read FenceSource %s in the cache: %w", name, err)
	}
	return nil
}

// choose finds the fence of the node that the remediation is about: that of the machine which the Node shows, and not one of an earlier machine of the name that
// waits for evidence. If the Node is gone, it is the latest.
func (x *remedied) choose(fences []*fencingv1.NodeFence, node string) {
	if x.node != nil {
		shown := bootOf(x.node)
		fences = slices.DeleteFunc(fences, func(f *fencingv1.NodeFence) bool { return shown.Replaces(kube.FencedBoot(f)) })
	}
	f := kube.LatestFence(fences, node)
	if f != nil && (!finished(f) || !f.CreationTimestamp.Before(&x.object.CreationTimestamp)) {
		x.fence = f
	}
}

// own reports whether the fence began for a remediation, and is not over.
func (x *remedied) own() bool {
	return x.fence != nil && !finished(x.fence) && x.fence.Spec.Trigger == fencingv1.TriggerRemediation
}

// over returns the outcome of a remediation that was about one failure of its node, and has ended with it: the volumes have moved, or the node was Ready. NHC
// deletes it then. Another author may leave it, and the next failure of the node is one that nothing has found to last.
func (x *remedied) over() *metav1.Condition {
	c := meta.FindStatusCondition(x.object.Status.Conditions, kube.ConditionSucceeded)
	if c == nil || c.Status != metav1.ConditionTrue && (c.Status != metav1.ConditionFalse || c.Reason != explain.RemediationNodeReady) {
		return nil
	}
	return c
}

// there reports whether the Node is the one that the fence is about. NHC deletes a remediation whose Node is gone (node-healthcheck-operator v0.12.0
// internal/controller/nodehealthcheck_controller.go:466): that says nothing about the machine, and releases nothing.
func (x *remedied) there() bool {
	return x.node != nil && (x.fence == nil || string(x.node.UID) == x.fence.Spec.NodeUID)
}

// remediationAsks reports whether a remediation asks for the fence of a node.
func (p *parts) remediationAsks(ctx context.Context, node string) (bool, error) {
	list := &fencingv1.BelayRemediationList{}
	if err := p.live.List(ctx, list); err != nil {
		return false, fmt.Errorf("list BelayRemediations: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(r fencingv1.BelayRemediation) bool {
		return kube.RemediatedNode(&r) == node && kube.RemediationAsks(&r)
	}), nil
}

// readAsker finds out whether what the fence began for has ended: then another component works on the machine. A fence that has commanded and taken nothing ends
// with that, and its record stays: a late create of the fence before finds the name taken. One that has continues without another command, since a machine that
// may be off is proven off, and its volumes are moved. While it is unknown, none is commanded, and the evidence that there is counts.
func (t *turn) readAsker(ctx context.Context, seen *fencing.Observed) {
	if t.fence.Spec.Trigger != fencingv1.TriggerRemediation || fenceState(t.fence).Phase != fencing.Fencing {
		return
	}
	asks, err := t.remediationAsks(ctx, t.fence.Spec.NodeName)
	if err != nil && !meta.IsNoMatchError(err) { // without the CustomResourceDefinition there are none
		log.FromContext(ctx).Error(err, "Cannot see whether a remediation still asks for the fence, so no command is sent")
	}
	seen.Withdrawn = !asks
	known := err == nil || meta.IsNoMatchError(err)
	seen.Unasked = !asks && known && t.there(ctx)
}

// there reports whether the Node that the fence is about is there after it was read that no remediation asks: NHC deletes one whose Node is gone, which is no
// request to end the fence.
func (t *turn) there(ctx context.Context) bool {
	node := &corev1.Node{}
	err := t.live.Get(ctx, client.ObjectKey{Name: t.fence.Spec.NodeName}, node)
	return err == nil && string(node.UID) == t.fence.Spec.NodeUID
}

// lapsed reports whether a fence began for a remediation, none asks for it any more, and it commands nothing more: what it commanded is carried out, or lost.
// What was withdrawn is the request, and not what the detector knows. So it looks at the node as at any other, which another component's lease holds back
// too, and a fence of its own takes the place of this one. One that has taken something, or has evidence or a statement, continues.
func (d *detector) lapsed(f *fencingv1.NodeFence) bool {
	if _, asked := d.asks[f.Spec.NodeName]; asked || f.Spec.Trigger != fencingv1.TriggerRemediation || f.DeletionTimestamp != nil || f.Spec.Statement != nil {
		return false
	}
	return fenceState(f).Commanded() && fenceState(f).Idles(d.now())
}

// endLapsed deletes the fence of a boot if it has lapsed, so that the detector's own can begin. It is bound to its version: no command is stored in between.
func (d *detector) endLapsed(ctx context.Context, f *fencingv1.NodeFence) error {
	if f == nil || !d.lapsed(f) {
		return nil
	}
	if d.NodeLeases != "" {
		if asks, err := d.remediationAsks(ctx, f.Spec.NodeName); err != nil || asks {
			return err
		}
	}
	err := d.client.Delete(ctx, f, client.Preconditions{UID: &f.UID, ResourceVersion: &f.ResourceVersion})
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("delete NodeFence %s, for which no remediation asks any more: %w", f.Name, err))
	}
	log.FromContext(ctx).Info("Ended a fence for which no remediation asks: the detector begins its own", "fence", f.Name, "node", f.Spec.NodeName)
	return nil
}

// outcome is what a remediation reports.
type outcome struct {
	processing bool
	succeeded  metav1.ConditionStatus
	reason     string
	message    string
}

func working(reason, message string) outcome {
	return outcome{true, metav1.ConditionUnknown, reason, message}
}

func failed(reason, message string) outcome {
	return outcome{false, metav1.ConditionFalse, reason, message}
}

// outcome derives what the remediation reports. Where nothing that belay does can end in evidence, it has failed at once, so that NHC tries its next
// remediator (node-healthcheck-operator v0.12.0 internal/controller/nodehealthcheck_controller.go:867).
func (r *remediator) outcome(x *remedied) outcome {
	if c := x.over(); c != nil && !x.own() && !kube.RemediationTimedOut(x.object) {
		return outcome{false, c.Status, c.Reason, c.Message}
	}
	if x.fence == nil {
		return r.unfenced(x)
	}
	return x.fenced()
}

// fenced is the outcome while there is a fence, also one that has ended.
func (x *remedied) fenced() outcome {
	state, timedOut := fenceState(x.fence), kube.RemediationTimedOut(x.object)
	switch {
	case meta.IsStatusConditionTrue(x.fence.Status.Conditions, conditionVolumesReleased):
		return outcome{false, metav1.ConditionTrue, string(fencing.Moved), explain.RemediationMoved}
	case timedOut && (state.MayEnd() || state.Phase == fencing.Cancelled && !state.Commanded()):
		return failed(explain.RemediationStopped, explain.RemediationTimedOut)
	case finished(x.fence):
		return failed(string(state.Phase), explain.RemediationEnded(state.Phase, state.Commanded()))
	case timedOut && !x.own():
		return failed(explain.RemediationStopped, explain.RemediationOver)
	case state.InFlight() && !state.MayTake(x.source):
		missing := ""
		if len(x.fence.Status.Missing) > 0 {
			missing = x.fence.Status.Missing[0]
		}
		return failed(string(fencing.NoEvidence), explain.RemediationWithoutEvidence(missing))
	case timedOut && state.Phase == fencing.Fencing:
		return working(string(fencing.RequestWithdrawn), explain.RemediationLapsed)
	}
	return working(string(state.Phase), explain.RemediationFenced(state.Phase))
}

// unfenced is the outcome while there is no fence.
func (r *remediator) unfenced(x *remedied) outcome {
	if kube.RemediationTimedOut(x.object) {
		return failed(explain.RemediationStopped, explain.RemediationTimedOut)
	}
	if x.node == nil {
		return failed(explain.RemediationNoNode, explain.RemediationNodeNotFound)
	}
	n := r.describe(x.node)
	switch {
	case n.Ready == fencing.Yes:
		return failed(explain.RemediationNodeReady, explain.RemediationReady)
	case r.DryRun:
		return failed(string(dryRun), explain.WouldFence)
	case n.Spared() != fencing.Settled:
		return failed(string(n.Spared()), explain.NotFencedBecause(n.Spared()))
	case !n.Boot.Complete():
		return failed(string(fencing.NodeIdentityUnknown), explain.NotFencedBecause(fencing.NodeIdentityUnknown))
	case r.ear.life(n.Boot).Sign() != "":
		return failed(string(fencing.NodeAlive), explain.RemediationAlive)
	}
	if why := r.looked(n.Boot.Node); fencing.Held(why) && why != "" {
		return working(string(why), explain.NotFenced(why))
	}
	return working(string(fencing.SilenceTooShort), explain.RemediationListens)
}

// keep adds and removes the finalizer: it is there while the remediation asks for something, and while the fence that began for it is not over. That of a deleted
// Node continues without a remediation.
func (r *remediator) keep(ctx context.Context, x *remedied, out outcome) error {
	before := x.object.DeepCopy()
	switch {
	case out.processing && x.object.DeletionTimestamp == nil, x.own() && x.there():
		if x.object.DeletionTimestamp != nil || !controllerutil.AddFinalizer(x.object, kube.RemediationFinalizer) {
			return nil
		}
	default:
		if !controllerutil.RemoveFinalizer(x.object, kube.RemediationFinalizer) {
			return nil
		}
	}
	if err := r.client.Patch(ctx, x.object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("change the finalizer of BelayRemediation %s/%s: %w", before.Namespace, before.Name, err)
	}
	return nil
}

// store writes the conditions, if they have changed, and reports what has begun or ended.
func (r *remediator) store(ctx context.Context, x *remedied, out outcome) error {
	before := x.object.DeepCopy()
	processing := metav1.ConditionFalse
	if out.processing {
		processing = metav1.ConditionTrue
	}
	changed := false
	for _, c := range []metav1.Condition{
		{Type: kube.ConditionProcessing, Status: processing, Reason: out.reason, Message: out.message},
		{Type: kube.ConditionSucceeded, Status: out.succeeded, Reason: out.reason, Message: out.message},
		{Type: kube.ConditionNodeDeletionExpected, Status: metav1.ConditionFalse, Reason: explain.RemediationKeepsNode, Message: explain.RemediationDeletesNoNode},
	} {
		changed = meta.SetStatusCondition(&x.object.Status.Conditions, c) || changed
	}
	if !changed {
		return nil
	}
	if err := r.client.Status().Patch(ctx, x.object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("patch the status of BelayRemediation %s/%s: %w", before.Namespace, before.Name, err)
	}
	log.FromContext(ctx).Info("Remediation changed", "object", client.ObjectKeyFromObject(before), "node", kube.RemediatedNode(before), "outcome", out.succeeded, "reason", out.reason)
	r.announce(x, before, out)
	return nil
}

// announce emits the events of medik8s' contract (medik8s/common v1.17.0 pkg/events/events.go:13-22).
func (r *remediator) announce(x *remedied, before *fencingv1.BelayRemediation, out outcome) {
	was := func(kind string) metav1.ConditionStatus {
		if c := meta.FindStatusCondition(before.Status.Conditions, kind); c != nil {
			return c.Status
		}
		return metav1.ConditionUnknown
	}
	var event explain.RemediationEvent
	switch {
	case out.processing && was(kube.ConditionProcessing) != metav1.ConditionTrue:
		event = explain.RemediationStartedEvent
	case out.succeeded == was(kube.ConditionSucceeded):
		return
	case out.succeeded == metav1.ConditionTrue:
		event = explain.RemediationFinishedEvent
	case out.reason == explain.RemediationStopped:
		event = explain.RemediationStoppedEvent
	case out.succeeded == metav1.ConditionFalse:
		event = explain.RemediationCannotStart(out.message)
	default:
		return
	}
	r.events.Eventf(x.object, nil, event.Type, event.Reason, "Remediate", "%s", event.Text)
}
