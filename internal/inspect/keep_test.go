package inspect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// TestKeptPodRuns: a container that kubectl debug has added keeps a pod from its end, also in what is kept of the pod.
func TestKeptPodRuns(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", DeletionTimestamp: new(metav1.Now())}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	pod.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if kept := keepPod(pod, nil, false); kube.PodEnded(kept) {
		t.Errorf("%+v has ended", kept.Status)
	}
}
