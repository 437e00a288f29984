package recovery

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// TestWithdrawnFenceCommandsNoMore: NodeHealthCheck escalates, because belay's machine does not obey, and makes the next remediation, which switches the
// machine off and on. A fence whose remediations have all timed out or were deleted sends no new command, or it would end each start of the machine. It takes
// what evidence there is: an Off that another component caused. Another remediation has it command again.
func TestWithdrawnFenceCommandsNoMore(t *testing.T) {
	remediation := func(change func(*fencingv1.BelayRemediation)) *fencingv1.BelayRemediation {
		r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1-1", Finalizers: []string{kube.RemediationFinalizer}}}
		r.Annotations = map[string]string{kube.NodeNameAnnotation: "n1"}
		if change != nil {
			change(r)
		}
		return r
	}
	timedOut := remediation(func(r *fencingv1.BelayRemediation) { r.Annotations[kube.TimedOutAnnotation] = "2026-01-01T00:00:00Z" })
	another := remediation(func(r *fencingv1.BelayRemediation) { r.Name = "n1-2" })
	ofAnother := remediation(func(r *fencingv1.BelayRemediation) { r.Annotations[kube.NodeNameAnnotation] = "n2" })
	for name, c := range map[string]struct {
		trigger      fencingv1.Trigger
		remediations []*fencingv1.BelayRemediation
		unread       bool
		commands     bool
	}{
		"a remediation asks":           {fencingv1.TriggerRemediation, []*fencingv1.BelayRemediation{remediation(nil)}, false, true},
		"it has timed out":             {fencingv1.TriggerRemediation, []*fencingv1.BelayRemediation{timedOut}, false, false},
		"it is gone":                   {fencingv1.TriggerRemediation, nil, false, false},
		"that of another node asks":    {fencingv1.TriggerRemediation, []*fencingv1.BelayRemediation{ofAnother}, false, false},
		"another one asks":             {fencingv1.TriggerRemediation, []*fencingv1.BelayRemediation{timedOut, another}, false, true},
		"they cannot be read":          {fencingv1.TriggerRemediation, []*fencingv1.BelayRemediation{remediation(nil)}, true, false},
		"the detector began by itself": {fencingv1.TriggerNodeSilent, []*fencingv1.BelayRemediation{timedOut}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, fencing.Fencing)
			for _, r := range c.remediations {
				must(t, s.client.Create(t.Context(), r.DeepCopy()))
			}
			f := s.fence()
			f.Spec.Trigger = c.trigger
			must(t, s.client.Update(t.Context(), f))
			f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "first", NotAfter: micro(s.clock.Add(-time.Second))}}
			must(t, s.client.Status().Update(t.Context(), f))
			if c.unread {
				s.live = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
					List: func(ctx context.Context, inner client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
						if _, ok := list.(*fencingv1.BelayRemediationList); ok {
							return errors.New("etcdserver: request timed out")
						}
						return inner.List(ctx, list, o...)
					},
				})
			}
			s.turns()
			s.answers(powerOn)
			for range 3 {
				s.clock = s.clock.Add(fencing.AskEvery)
				s.ear.silences.Tick(s.clock)
				s.turns()
			}
			if n := len(s.fence().Status.Intents); (n > 1) != c.commands {
				t.Fatalf("%d commands are stored", n)
			}
			if c.commands {
				return
			}
			s.answers(powerOff)
			s.turns()
			if f := s.fence(); f.Status.Phase != fencingv1.Phase(fencing.Tainting) {
				t.Errorf("an Off that another component caused is no evidence: it is %s", f.Status.Phase)
			}
		})
	}
}

// TestDetectorReplacesAWithdrawnFence: what a remediation withdraws is its request, and not what the detector knows. A fence that commands nothing more makes
// room for one of the detector's own, as soon as the detector's rules would fence the node: it is silent, has something to lose, and no other component has its
// lease. Without that a node whose switch is repaired after the timeout would wait until a person comes.
func TestDetectorReplacesAWithdrawnFence(t *testing.T) {
	timedOut := map[string]string{kube.NodeNameAnnotation: "n1", kube.TimedOutAnnotation: "2026-01-01T00:00:00Z"}
	for name, c := range map[string]struct {
		change   func(w *watched, f *fencingv1.NodeFence, r *fencingv1.BelayRemediation)
		replaces bool
	}{
		"the remediation has timed out": {func(*watched, *fencingv1.NodeFence, *fencingv1.BelayRemediation) {}, true},
		"it asks": {func(_ *watched, _ *fencingv1.NodeFence, r *fencingv1.BelayRemediation) {
			delete(r.Annotations, kube.TimedOutAnnotation)
		}, false},
		"another component has the lease": {func(w *watched, _ *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) {
			w.leasedTo("n1", "NodeHealthCheck-workers")
		}, false},
		"there is nothing to lose": {func(w *watched, _ *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) { w.empties("n1") }, false},
		"the command may be carried out": {func(w *watched, f *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) {
			f.Status.Intents[0].NotAfter = micro(w.clock.Add(time.Minute))
		}, false},
		"volumes were taken one by one": {func(_ *watched, f *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) {
			setCondition(&f.Status, conditionStorageFenced, metav1.ConditionTrue, "x", "x")
		}, false},
		"a person has stated something": {func(w *watched, f *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) {
			f.Spec.Statement = &fencingv1.Statement{Expires: metav1.NewTime(w.clock.Add(time.Hour))}
		}, false},
		"it has evidence": {func(_ *watched, f *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) {
			f.Status.Phase = fencingv1.Phase(fencing.Tainting)
		}, false},
		"the detector began it": {func(_ *watched, f *fencingv1.NodeFence, _ *fencingv1.BelayRemediation) {
			f.Spec.Trigger = fencingv1.TriggerNodeSilent
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 5, InFlight: 2}, "n1", "n2", "n3")
			w.stamps()
			w.ear.silences.Forget("n2")
			w.ear.silences.Forget("n3")
			w.NodeLeases, w.leases = nodeLeases, map[string]time.Time{}
			f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{finalizer}}}
			f.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: 1, Trigger: fencingv1.TriggerRemediation}
			f.Status.Phase = fencingv1.Phase(fencing.Fencing)
			f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "first", NotAfter: micro(w.clock.Add(-time.Second))}}
			r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1-1", Finalizers: []string{kube.RemediationFinalizer}, Annotations: maps.Clone(timedOut)}}
			c.change(w, f, r)
			status := f.Status
			must(t, w.client.Create(t.Context(), f))
			f.Status = status
			must(t, w.client.Status().Update(t.Context(), f))
			must(t, w.client.Create(t.Context(), r))
			w.looks(3)
			must(t, w.live.Get(t.Context(), client.ObjectKeyFromObject(f), f))
			if deleted := f.DeletionTimestamp != nil; deleted != c.replaces {
				t.Fatalf("the fence is deleted: %t; the detector said %v", deleted, w.said)
			}
			if !c.replaces {
				return
			}
			f.Finalizers = nil // as the actor ends it
			must(t, w.client.Update(t.Context(), f))
			w.looks(3)
			next := &fencingv1.NodeFence{}
			must(t, w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, next))
			if next.UID == f.UID || next.Spec.Trigger != fencingv1.TriggerNodeSilent || next.Spec.Epoch <= f.Spec.Epoch {
				t.Errorf("the next fence is %+v", next.Spec)
			}
		})
	}
}

// leasedTo: another component has the lease of the node.
func (w *watched) leasedTo(name, holder string) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: nodeLeases, Name: kube.NodeLeaseName(name)}}
	kube.HoldNodeLease(lease, holder, w.clock, time.Hour)
	must(w.t, w.client.Create(w.t.Context(), lease))
}

// empties: the node has no pod with a volume.
func (w *watched) empties(name string) {
	must(w.t, w.client.Delete(w.t.Context(), fixture.Pod("default", "db-of-"+name, name, "data")))
}

// TestUnaskedFenceEnds: a fence that began for a remediation, and has commanded nothing, ends when none asks any more, also if no remediation is left to see to
// that: without its finalizer, or because it was deleted when the detector had just read it. It would command nothing, and keep the detector's own from beginning.
// Its record stays, so that a late create of the fence before finds the name taken. Where the Node is gone, or another one, NodeHealthCheck deletes its remediation
// for that: the fence continues.
func TestUnaskedFenceEnds(t *testing.T) {
	asks := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1", Finalizers: []string{kube.RemediationFinalizer}}}
	for name, c := range map[string]struct {
		trigger fencingv1.Trigger
		before  func(*stage)
		ends    bool
	}{
		"none asks":                    {fencingv1.TriggerRemediation, func(*stage) {}, true},
		"one asks":                     {fencingv1.TriggerRemediation, func(s *stage) { must(t, s.client.Create(t.Context(), asks.DeepCopy())) }, false},
		"the detector began by itself": {fencingv1.TriggerNodeSilent, func(*stage) {}, false},
		"the Node is gone":             {fencingv1.TriggerRemediation, func(s *stage) { must(t, s.client.Delete(t.Context(), nodeOf("n1", 0))) }, false},
		"another Node has the name": {fencingv1.TriggerRemediation, func(s *stage) {
			must(t, s.client.Delete(t.Context(), nodeOf("n1", 0)))
			other := nodeOf("n1", 0)
			other.UID = "uid-other"
			must(t, s.client.Create(t.Context(), other))
		}, false},
		"the Node is deleted, and its remediation, after it was read": {fencingv1.TriggerRemediation, func(s *stage) {
			s.live = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
				List: func(ctx context.Context, inner client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
					if _, ok := list.(*fencingv1.BelayRemediationList); ok {
						must(t, client.IgnoreNotFound(s.client.Delete(ctx, nodeOf("n1", 0))))
					}
					return inner.List(ctx, list, o...)
				},
			})
		}, false},
		"they cannot be read": {fencingv1.TriggerRemediation, func(s *stage) {
			s.live = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
				List: func(ctx context.Context, inner client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
					if _, ok := list.(*fencingv1.BelayRemediationList); ok {
						return errors.New("etcdserver: request timed out")
					}
					return inner.List(ctx, list, o...)
				},
			})
		}, false},
	} {
		s := newStage(t, fencing.Fencing)
		f := s.fence()
		f.Spec.Trigger = c.trigger
		must(t, s.client.Update(t.Context(), f))
		must(t, s.client.Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "csi-1", Annotations: map[string]string{kube.BootIDAnnotation: "boot-n1"}}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"},
		}))
		c.before(s)
		after := s.turns()
		if f := s.fence(); finished(f) != c.ends || f.DeletionTimestamp != nil {
			t.Errorf("%s: the fence is %s, finalizers %v", name, f.Status.Phase, f.Finalizers)
		}
		if c.trigger == fencingv1.TriggerRemediation && !c.ends && after > unaskedWithin {
			t.Errorf("%s: looked at again after %v", name, after)
		}
	}
}

// TestRemediationIsAboutOneFailure: a remediation that was made without NodeHealthCheck, or that outlives it, asks for no other fence once its node was Ready, or
// its volumes have moved: it is not about the next failure of the node, of which no health check has found that it lasts.
func TestRemediationIsAboutOneFailure(t *testing.T) {
	for _, over := range []metav1.Condition{
		{Type: kube.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: explain.RemediationNodeReady},
		{Type: kube.ConditionSucceeded, Status: metav1.ConditionTrue, Reason: string(fencing.Moved)},
		{Type: kube.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: string(fencing.SilenceTooShort)},
	} {
		node := nodeOf("n1", 0)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		if over.Status == metav1.ConditionTrue { // its machine is back: NodeHealthCheck escalates on False
			node.Status.Conditions[0].Status = corev1.ConditionTrue
		}
		r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1"}}
		r.Status.Conditions = []metav1.Condition{over}
		p := partsOver(nil)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(node, r).WithStatusSubresource(r, node).Build()
		p.client, p.live = c, c
		x := &remediator{parts: p, looked: func(string) decision.Reason { return "" }}
		for range 2 {
			_, err := x.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(r)})
			must(t, err)
		}
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(r), r))
		if c := meta.FindStatusCondition(r.Status.Conditions, kube.ConditionSucceeded); over.Status != metav1.ConditionUnknown && (c.Status != over.Status || c.Reason != over.Reason) {
			t.Errorf("%s %s has become %s %s", over.Status, over.Reason, c.Status, c.Reason)
		}
		if asks, open := kube.RemediationAsks(r), over.Status == metav1.ConditionUnknown; asks != open {
			t.Errorf("%s %s: asks %t, conditions %+v", over.Status, over.Reason, asks, r.Status.Conditions)
		}
	}
}

// TestRemediationOfNoNode: what can be no name of a Node has failed like the name of none, and is not asked of the API server, whose client refuses it each time.
func TestRemediationOfNoNode(t *testing.T) {
	for _, name := range []string{"../../etc", "", "a b", "N1"} {
		r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1", Annotations: map[string]string{kube.NodeNameAnnotation: name}}}
		p := partsOver(nil)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(r).WithStatusSubresource(r).Build()
		p.client = c
		p.live = interceptor.NewClient(c, interceptor.Funcs{
			Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
				if _, ok := object.(*corev1.Node); ok {
					return errors.New("invalid resource name") // k8s.io/client-go v0.36.3 rest/request.go:343
				}
				return inner.Get(ctx, key, object, o...)
			},
		})
		x := &remediator{parts: p, looked: func(string) decision.Reason { return "" }}
		if _, err := x.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(r)}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(r), r))
		if s := meta.FindStatusCondition(r.Status.Conditions, kube.ConditionSucceeded); s == nil || s.Status != metav1.ConditionFalse || s.Reason != explain.RemediationNoNode {
			t.Errorf("%q: %+v", name, r.Status.Conditions)
		}
	}
}
