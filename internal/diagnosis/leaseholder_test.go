package diagnosis

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestLogsOfTheAttacher: the log of a lease's holder is named only if a pod of that name, in the namespace of the lease, was read.
func TestLogsOfTheAttacher(t *testing.T) {
	for name, test := range map[string]struct {
		pod  *metav1.ObjectMeta
		want string
	}{
		"a pod":                                {&metav1.ObjectMeta{Namespace: "kube-system", Name: "attacher-0"}, "kubectl logs -n kube-system attacher-0 --all-containers --tail=100"},
		"no pod":                               {nil, "kubectl get pods -o wide -n kube-system"},
		"a pod of that name elsewhere":         {&metav1.ObjectMeta{Namespace: "ns", Name: "attacher-0"}, "kubectl get pods -o wide -n kube-system"},
		"another pod in the lease's namespace": {&metav1.ObjectMeta{Namespace: "kube-system", Name: "attacher-1"}, "kubectl get pods -o wide -n kube-system"},
	} {
		t.Run(name, func(t *testing.T) {
			e := answered(t, drivers.Publish, oneDriver, "Internal", "UnauthorizedOperation: You are not authorized to perform this operation", func(s scene) {
				s.AllNamespaces = true
				s.Leases = append(s.Leases, &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: kube.SanitizeDriverName(kube.AttacherLease + oneDriver)},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("attacher-0"), RenewTime: &metav1.MicroTime{Time: s.Now}, LeaseDurationSeconds: new(int32(15))},
				})
				if test.pod != nil {
					s.Pods = append(s.Pods, &corev1.Pod{ObjectMeta: *test.pod})
				}
			})
			if next := e.Findings[0].Next; e.Reason != explain.DriverNotAuthorized || next[0].Command != test.want {
				t.Errorf("%s: %+v, want %s", e.Reason, next, test.want)
			}
		})
	}
}
