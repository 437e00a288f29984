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

// A pod that the taint manager evicted yesterday, in another silence: the condition stays on the pod, and says nothing about this silence. Either a finalizer
// keeps the pod, and the node has been silent for a moment; or the pod was never deleted, because the taint manager writes the condition first and its delete
// failed (k/k v1.36.3 pkg/controller/tainteviction/taint_eviction.go:129-147).
func TestHostileEvictionBeforeTheSilenceGivesNoNodeUp(t *testing.T) {
	kept, left := evictedBefore(24*time.Hour, new(int64(300))), evictedBefore(24*time.Hour, new(int64(300)))
	left.DeletionTimestamp, left.DeletionGracePeriodSeconds, left.Finalizers = nil, nil, nil
	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		silent time.Duration
	}{"kept by a finalizer": {kept, 26 * time.Second}, "not deleted": {left, 5 * time.Minute}} {
		n := fencing.Node{Boot: bootOf(nodeOf("n1", 0)), Silent: tt.silent}
		must(t, (&detector{parts: partsOver(nil, tt.pod)}).occupants(t.Context(), &n, nodeOf("n1", 0)))
		if n.GivenUp {
			t.Errorf("%s: an eviction of yesterday gives up a node that is silent for %v", name, tt.silent)
		}
	}
}
