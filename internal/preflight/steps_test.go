package preflight

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/kube"
)

const hostileOff = "--controllers=*,-persistentvolume-attach-detach-controller"

// hostilePhase is a state in which the next step would make two attach/detach controllers run.
type hostilePhase struct {
	phase   Phase
	objects []runtime.Object
}

func hostilePhases() map[string]hostilePhase {
	two := int32(2)
	// helm's Deployment still wants two pods; at this moment it has none (drained, evicted, quota). They come back after the switch.
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"},
		Spec:       appsv1.DeploymentSpec{Replicas: &two, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": kube.FieldManager}}}},
	}
	// it was scaled to 0 a moment ago, in the middle of an upgrade: what it did before may still make a pod
	scaling := deployment.DeepCopy()
	scaling.Spec.Replicas, scaling.Generation, scaling.Status.ObservedGeneration = new(int32(0)), 2, 1
	ending := deployment.DeepCopy()
	ending.Spec.Replicas, ending.Status.Replicas = new(int32(0)), 1
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
	return map[string]hostilePhase{
		"back: the Deployment still wants pods":             {RollBack, []runtime.Object{deployment, upstreamPod("kube-controller-manager", hostileOff)}},
		"back: the Deployment has not seen its 0 replicas":  {RollBack, []runtime.Object{scaling}},
		"back: the Deployment still has a replica":          {RollBack, []runtime.Object{ending}},
		"back: a pod with another label and lease":          {RollBack, []runtime.Object{custom, customLease, upstreamPod("kube-controller-manager", hostileOff)}},
		"back: a live lease, and this clock is 20 s ahead":  {RollBack, []runtime.Object{ahead}},
		"between: one control-plane node of three not seen": {TakeOver, []runtime.Object{node("cp-1"), node("cp-2"), node("cp-3"), upstreamPod("kube-controller-manager", hostileOff), second(hostileOff)}},
		"between: as many pods as control-plane nodes, and one of them elsewhere": {TakeOver, []runtime.Object{
			node("cp-1"), node("cp-2"), onNode(upstreamPod("kube-controller-manager", hostileOff), "cp-1"), onNode(second(hostileOff), "worker-1"),
		}},
	}
}

// TestHostilePhases: preflight never says READY.
func TestHostilePhases(t *testing.T) {
	for name := range hostilePhases() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in which no lease ages
				tt := hostilePhases()[name]
				if r := Run(t.Context(), Config{Clients: fake.NewClientset(tt.objects...), Phase: tt.phase}); r.Ready {
					t.Errorf("%s %+v", r.Verdict(), r.Checks)
				}
			})
		})
	}
}

func onNode(pod *corev1.Pod, name string) *corev1.Pod {
	pod.Spec.NodeName, pod.UID = name, types.UID(name)
	return pod
}

// TestRollBackByServerClock: the clock of the host where preflight runs does not decide whether a lease is held, nor does a Deployment that
// wants no pods, the parts of recovery, or a run of preflight keep the other controller from being enabled.
func TestRollBackByServerClock(t *testing.T) {
	l := heldLease("kube-system", kube.FieldManager, "cp-1_u")
	l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-5 * time.Minute)))
	clock := &kube.ServerClock{}
	clock.Observe(time.Now().Add(-5 * time.Minute).UTC().Format(http.TimeFormat))
	if r := Run(t.Context(), Config{Clients: fake.NewClientset(l), Clock: clock, Phase: RollBack}); r.Ready {
		t.Errorf("the lease is held by the API server's clock: %+v", r.Checks)
	}
	zero := int32(0)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"}, Spec: appsv1.DeploymentSpec{
		Replicas: &zero, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{ownLabel: kube.FieldManager}}},
	}}
	objects := []runtime.Object{
		deployment, runs("belay-system", "detector-0", "r/belay-controller:v1", "--controllers=recovery", "--recovery-roles=detector"),
		runs("belay-system", "check", "r/belay-controller:v1", "preflight", "--phase=roll-back"),
	}
	if r := Run(t.Context(), Config{Clients: fake.NewClientset(objects...), Phase: RollBack}); !r.Ready {
		t.Errorf("not ready: %+v", r.Checks)
	}
}

// TestRollBackWithoutRightToDeployments: whether pods of belay-controller come back is not known.
func TestRollBackWithoutRightToDeployments(t *testing.T) {
	clients := fake.NewClientset()
	clients.PrependReactor("list", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "", errors.New("no"))
	})
	r := Run(t.Context(), Config{Clients: clients, Phase: RollBack})
	if c := check(t, r, ownCheck); r.Ready || c.Result != Unknown || !strings.Contains(c.Message, "needs the permission to list deployments") {
		t.Errorf("ready %v: %+v", r.Ready, c)
	}
}
