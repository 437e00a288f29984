package attachdetach

import (
	"context"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/testing/wait"
)

// TestFlowSchemasMatch sends requests with a token of the shipped ServiceAccount and
// reads from the answers how the API server sorted them: the lease as other leases, the
// rest as requests of kube-controller-manager.
func TestFlowSchemasMatch(t *testing.T) {
	l := newLab(t)
	config, flow := cluster.Token(t, "belay-system", "belay-controller")
	own := kubernetes.NewForConfigOrDie(config)
	lease, other := "belay-controller-leader-election leader-election", "belay-controller workload-high"
	for what, tt := range map[string]struct {
		send func(ctx context.Context) error // refused by its content or by the rules, after it was sorted
		want string
	}{
		"get the lease": {func(ctx context.Context) error {
			_, err := own.CoordinationV1().Leases("kube-system").Get(ctx, "belay-controller", metav1.GetOptions{})
			return err
		}, lease},
		"renew a lease": {func(ctx context.Context) error {
			// Invalid, since an update of a lease that does not exist creates it: no leader would ever use its right to do so.
			invalid := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: "belay-controller", ResourceVersion: "1"},
				Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(-1))},
			}
			_, err := own.CoordinationV1().Leases("kube-system").Update(ctx, invalid, metav1.UpdateOptions{})
			return err
		}, lease},
		"list VolumeAttachments": {func(ctx context.Context) error {
			_, err := own.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
			return err
		}, other},
		"list pods": {func(ctx context.Context) error {
			_, err := own.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			return err
		}, other},
		"report": {func(ctx context.Context) error {
			_, err := own.CoreV1().Nodes().Patch(ctx, l.name("none"), types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
			return err
		}, other},
		"event": {func(ctx context.Context) error {
			_, err := own.CoreV1().Events(l.prefix).Create(ctx, &corev1.Event{}, metav1.CreateOptions{})
			return err
		}, other},
		"discovery": {func(ctx context.Context) error {
			return own.RESTClient().Get().AbsPath("/apis").Do(ctx).Error()
		}, other},
	} {
		wait.Until(t, what+" is served by "+tt.want, func() bool { // the API server learns of them by a watch
			_ = tt.send(l.ctx)
			return flow() == tt.want
		})
	}
}
