package recovery

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/fixture"
)

// evictedBefore is a pod with a claim that the taint manager evicted from the node a while ago.
func evictedBefore(since time.Duration, tolerates *int64) *corev1.Pod {
	pod, at := fixture.Pod("default", "db-0", "n1", "data"), metav1.NewTime(time.Now().Add(-since))
	pod.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: tolerates}}
	grace := int64(30)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds, pod.Finalizers = &at, &grace, []string{"test/hold"}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", LastTransitionTime: at}}
	return pod
}

// A pod that the taint manager evicted yesterday, in another silence, and that a finalizer keeps: the condition stays on the pod, and says nothing about
// this silence. The machine whose kubelet is replaced today has no chance: it is switched off 25 s after its last renewal.
func TestHostileEvictionBeforeTheSilenceGivesNoNodeUp(t *testing.T) {
	n := fencing.Node{Boot: bootOf(nodeOf("n1", 0)), Silent: 26 * time.Second}
	p := partsOver(nil, evictedBefore(24*time.Hour, new(int64(300))))
	must(t, (&detector{parts: p}).occupants(t.Context(), &n, nodeOf("n1", 0)))
	if n.GivenUp {
		t.Error("an eviction of yesterday gives up a node that is silent for 26 s")
	}
}
