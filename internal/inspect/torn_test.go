package inspect

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
)

// TestTornPodsHaveTheirTimes: a pod of which an event says that a volume was detached under it is kept with the start of its container, however many such
// pods there are, and no other is.
func TestTornPodsHaveTheirTimes(t *testing.T) {
	began := metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	for _, torn := range []int{0, 1, few, few + 1, 3 * few} {
		for _, namespaces := range []int{1, 2 * few} {
			t.Run(fmt.Sprintf("%d in %d", torn, namespaces), func(t *testing.T) {
				var pods []runtime.Object
				var events []*corev1.Event
				for i := range torn + 2 {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%namespaces), Name: fmt.Sprintf("p-%d", i), UID: types.UID(fmt.Sprint(i))}}
					pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
					pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}}}}
					pods = append(pods, pod)
					reason := explain.VolumeDetachedInUse
					if i >= torn {
						reason = "FailedMount"
					}
					events = append(events, &corev1.Event{Reason: reason, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: pod.UID}})
				}
				r := served(t, pods...).start()
				r.into.Events = events
				r.pods(t.Context(), "")
				r.torn(t.Context())
				if len(r.into.Pods) != torn+2 || len(r.into.Unread) > 0 {
					t.Fatalf("%d pods, unread: %v", len(r.into.Pods), r.into.Unread)
				}
				known := 0
				for _, pod := range r.into.Pods {
					if pod.Status.ContainerStatuses[0].State.Running.StartedAt.Equal(&began) {
						known++
					}
				}
				if known != torn {
					t.Errorf("%d pods have the start of their container", known)
				}
			})
		}
	}
}
