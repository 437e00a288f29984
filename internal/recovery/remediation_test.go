package recovery

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// TestRemediationThatHasSucceededIsNotPolled: the volumes have moved, and the machine is off until a person starts it, perhaps for weeks. Nothing changes until its
// Node or its NodeFence does, which are watched: what has an outcome is looked at as one that belay does not work on, and not once a second.
func TestRemediationThatHasSucceededIsNotPolled(t *testing.T) {
	r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1", Finalizers: []string{kube.RemediationFinalizer}}}
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "fence-1", Finalizers: []string{finalizer}}}
	fence.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: 1, Trigger: fencingv1.TriggerRemediation}
	fence.Status.Phase = fencingv1.Phase(fencing.Moved)
	setCondition(&fence.Status, conditionVolumesReleased, metav1.ConditionTrue, "Detached", "")
	p := partsOver(nil)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(nodeOf("n1", 1), r, fence).WithStatusSubresource(r, fence).Build()
	p.client, p.live = c, c
	x := &remediator{parts: p, looked: func(string) decision.Reason { return "" }}
	var again reconcile.Result
	for range 3 {
		var err error
		again, err = x.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(r)})
		must(t, err)
	}
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(r), r))
	for _, o := range r.Status.Conditions {
		if o.Type == kube.ConditionSucceeded && o.Status != metav1.ConditionTrue {
			t.Fatalf("%+v: the test shows nothing", o)
		}
	}
	if again.RequeueAfter < remediateLater {
		t.Errorf("a remediation that has succeeded is read again each %v", again.RequeueAfter)
	}
}
