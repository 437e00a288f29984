package inspect

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// TestManyVolumesInSnapshot: of a pod with more volumes and tolerations than any pod needs, a snapshot keeps little, and its explanation says why
// none is attached.
func TestManyVolumesInSnapshot(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "many", UID: types.UID("1")}, Spec: corev1.PodSpec{NodeName: "n"}}
	for i := range 10 * kube.MaxVolumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", i)},
		}})
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(i))})
	}
	r := served(t, pod)
	subject := diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "a", Name: "many"}
	x := r.start()
	x.subject(t.Context(), subject)
	s := x.finish()
	if len(s.Pods) != 1 || s.Pods[0].Size() > 4<<10 {
		t.Fatalf("keeps %d pods, the first with %d bytes", len(s.Pods), s.Pods[0].Size())
	}
	e, err := diagnosis.Explain(s, subject)
	if err != nil || !strings.Contains(e.Summary, "gets no volume attached") {
		t.Errorf("explained as %q (%v)", e.Summary, err)
	}
	x = r.start()
	x.pods(t.Context(), "")
	if s := x.finish(); len(s.Pods) != 0 {
		t.Errorf("keeps %d bytes of a pod that gets no volume", s.Pods[0].Size())
	}
}
