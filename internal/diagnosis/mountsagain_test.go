package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
)

// TestMountsAgain: after a reboot of its node a pod keeps its node, its phase and the end of its containers, and kubelet mounts its volumes again before it makes
// the sandbox. What it reports since then is what the pod waits for. The two states are those of a runtime that still knows the container, and of one that
// does not (k/k v1.36.3 pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses: ContainerStatusUnknown).
func TestMountsAgain(t *testing.T) {
	for name, status := range map[string]corev1.ContainerStatus{
		"known": {State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown"}}},
		"unknown": {
			RestartCount: 1, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.mounts()
			s.waiter.Status.Phase, s.waiter.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{status}
			s.waiter.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(s.Now.Add(-5 * time.Minute)),
			}}
			s.says("", "Pod", "FailedMount", `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = bad superblock`, time.Second)
			for _, about := range []Ref{theWaiter, theClaim, theVolume} {
				e, err := Explain(s.Snapshot, about)
				if err != nil || e.Reason != explain.MountFailing {
					t.Errorf("%s: %s %s: %s (%v)", about, e.Verdict, e.Reason, e.Summary, err)
				}
			}
			if list := Stuck(s.Snapshot, "", 0); len(list.Items) != 1 || list.Items[0].Since == nil || list.Items[0].Since.Before(s.Now.Add(-6*time.Minute)) {
				t.Errorf("stuck: %+v", list.Items)
			}
			s.Events[0].LastTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Minute)) // before the sandbox ended
			if e, err := Explain(s.Snapshot, theWaiter); err != nil || e.Reason == explain.MountFailing {
				t.Errorf("an event of the boot before: %s: %s (%v)", e.Reason, e.Summary, err)
			}
		})
	}
}
