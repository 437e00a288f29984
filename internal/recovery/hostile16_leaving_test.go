package recovery

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// A kubelet says that its machine shuts down, and stops. 50 s after its last renewal the node lifecycle controller writes Ready Unknown, "Kubelet stopped
// posting node status." over what it said (kubernetes v1.36.3 pkg/controller/nodelifecycle/node_lifecycle_controller.go:950-953). So the chance of five
// minutes ends after 50 s: a machine that installs firmware, or whose BIOS takes minutes, is switched off in the middle.
func TestHostileAnnouncementOutlivesWhatTheLifecycleControllerWrites(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 9}, "n1", "n2")
	w.Profile.Chance = 5 * time.Minute
	lease := leaseOf("n1")
	must(t, w.live.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	w.ear.silences.Forget("n1")
	w.ear.silences.Renewed(w.clock.Add(-26*time.Second), "n1", renewal(lease), 40*time.Second)
	says := func(ready corev1.ConditionStatus, message string) {
		node := &corev1.Node{}
		must(t, w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
		setReady(node, ready)
		node.Status.Conditions[0].Message = message
		must(t, w.client.Status().Update(t.Context(), node))
	}
	says(corev1.ConditionFalse, "node is shutting down")
	fenced := func() bool {
		return w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, &fencingv1.NodeFence{}) == nil
	}
	w.looks(40) // half a second each
	if fenced() {
		t.Fatal("fenced although it announced that it stops")
	}
	says(corev1.ConditionUnknown, "Kubelet stopped posting node status.")
	w.looks(40)
	if fenced() {
		t.Errorf("fenced about a minute after its last renewal, in the middle of the stop that it announced: %v", w.said)
	}
}
