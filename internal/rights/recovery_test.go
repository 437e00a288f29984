package rights

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// TestWhatAKubeletSaysOfItself: what recovery lets count against no other node is what a kubelet can write, and what it trusts is what a kubelet
// cannot write: the label of the control plane, and the key of a kubelet in the status of a FenceSource.
func TestWhatAKubeletSaysOfItself(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, fencingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	config := kubelet(t, "says")
	server.Apply(t, "../../deploy/belay-recovery/fencing.belay.dev_fencesources.yaml")
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "says"}}
	merge := func(patch string) client.Patch { return client.RawPatch("application/merge-patch+json", []byte(patch)) }
	for what, patch := range map[string]string{
		"its zone":    `{"metadata": {"labels": {"` + corev1.LabelTopologyZone + `": "of-another"}}}`,
		"its opt-out": `{"metadata": {"annotations": {"` + kube.FenceOptOutAnnotation + `": ""}}}`,
	} {
		if err := c.Patch(t.Context(), node, merge(patch)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	status := `{"status": {"nodeInfo": {"systemUUID": "4c4c4544-0051-3910-8052-b4c04f4d3532"}, "conditions": [{"type": "` + kube.MaintenanceInProgress + `", "status": "True"}]}}`
	if err := c.Status().Patch(t.Context(), node, merge(status)); err != nil {
		t.Errorf("its system UUID and its maintenance: %v", err)
	}
	if err := c.Patch(t.Context(), node, merge(`{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`)); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet joined the control plane: %v", err)
	}
	source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "says"}}
	if err := c.Status().Patch(t.Context(), source, merge(`{"status": {"bound": {"kubeletKey": "sha256:0"}}}`)); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet wrote the key that is remembered of it: %v", err)
	}
}

// TestZoneOfALabelHoldsBackNoFence: a kubelet moves its Node into the zone of others, and falls silent. A detector that begins to lead after that has seen no other
// zone of it. The silent node of that zone is fenced all the same: what a node writes itself holds back no fence of others.
func TestZoneOfALabelHoldsBackNoFence(t *testing.T) {
	f := newFleet(t)
	in := func(name string) {
		t.Helper()
		f.must(f.admin.Patch(t.Context(), f.node(name), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+corev1.LabelTopologyZone+`":"b"}}}`))))
	}
	create(t, f.node("zone-alive"))
	f.lease("zone-alive", 3600)
	in("zone-alive")
	f.dead("zone-victim")
	in("zone-victim")
	liar := f.dead("zone-liar") // of another zone
	f.must(liar.Patch(t.Context(), f.node("zone-liar"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+corev1.LabelTopologyZone+`":"b"}}}`))))
	f.recovers()
	wait.Until(t, "the victim is fenced", func() bool {
		events := &eventsv1.EventList{}
		f.must(f.admin.List(t.Context(), events))
		for _, e := range events.Items {
			if e.Regarding.Name == "zone-victim" && e.Reason == string(fencing.ZoneSilent) {
				t.Fatalf("zone-victim is not fenced: %s: %s", e.Reason, e.Note)
			}
		}
		return f.admin.Get(t.Context(), client.ObjectKey{Name: "zone-victim"}, &fencingv1.NodeFence{}) == nil
	})
}
