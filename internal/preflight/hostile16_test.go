package preflight

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"belay.dev/belay/internal/kube"
)

const hostileOff = "--controllers=*,-persistentvolume-attach-detach-controller"

// TestHostilePhases: states in which the next step would make two attach/detach controllers run, and preflight says READY.
func TestHostilePhases(t *testing.T) {
	two := int32(2)
	// helm's Deployment still wants two pods; at this moment it has none (drained, evicted, quota). They come back after the switch.
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"},
		Spec:       appsv1.DeploymentSpec{Replicas: &two, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": kube.FieldManager}}}},
	}
	// a pod of belay-controller with other labels and --leader-elect-resource-name
	custom := runs("storage", "ad-0", "registry/belay-controller:v1")
	custom.Labels = map[string]string{"app": "ad"}
	customLease := heldLease("kube-system", "storage-ad", "ad-0_u")
	// the clock of the host where preflight runs is 20 s ahead of the holder's
	ahead := heldLease("kube-system", kube.FieldManager, "cp-1_u")
	ahead.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-20 * time.Second)}
	// three control-plane nodes, the pod of one is not there: its kube-controller-manager has the old manifest and returns with it
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}}
	}
	for name, tt := range map[string]struct {
		phase   Phase
		objects []runtime.Object
	}{
		"back: the Deployment still wants pods":             {RollBack, []runtime.Object{deployment, upstreamPod("kube-controller-manager", hostileOff)}},
		"back: a pod with another label and lease":          {RollBack, []runtime.Object{custom, customLease, upstreamPod("kube-controller-manager", hostileOff)}},
		"back: a live lease, and this clock is 20 s ahead":  {RollBack, []runtime.Object{ahead}},
		"between: one control-plane node of three not seen": {TakeOver, []runtime.Object{node("cp-1"), node("cp-2"), node("cp-3"), upstreamPod("kube-controller-manager", hostileOff), second(hostileOff)}},
	} {
		t.Run(name, func(t *testing.T) {
			if r := Run(t.Context(), Config{Clients: fake.NewClientset(tt.objects...), Phase: tt.phase}); r.Ready {
				t.Errorf("%s %+v", r.Verdict(), r.Checks)
			}
		})
	}
}

// TestHostileMayLead: where preflight wants a person's word (EKS, GKE, k3s: no kube-controller-manager pod), belay-controller as the chart installs it by
// default leads without that word, beside upstream's controller, until it has seen that write.
func TestHostileMayLead(t *testing.T) {
	clients := fake.NewClientset(leaseOf("cp-1_u", time.Now().Add(-time.Hour)))
	r := Run(t.Context(), Config{Clients: clients})
	refusal, err := MayLead(t.Context(), clients)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Ready && refusal == nil {
		t.Errorf("preflight: %s; and the controller leads", r.Verdict())
	}
}
