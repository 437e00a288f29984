package attacher

import (
	"context"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/testing/wait"
)

// TestFlowSchemasMatch sends requests with a token of the shipped ServiceAccount and
// reads from the answers how the API server sorted them.
func TestFlowSchemasMatch(t *testing.T) {
	server.Start(t)
	server.Apply(t, "../../deploy/belay-attacher/rbac.yaml", "../../deploy/belay-attacher/flowschema.yaml")
	config, flow := server.Token(t, shippedNamespace, "belay-attacher")
	own := kubernetes.NewForConfigOrDie(config)
	for what, tt := range map[string]struct {
		send func(ctx context.Context) // what the answer is does not matter
		want string
	}{
		"renew a lease": {func(ctx context.Context) {
			stale := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "external-attacher-leader-x", ResourceVersion: "1"}}
			_, _ = own.CoordinationV1().Leases(shippedNamespace).Update(ctx, stale, metav1.UpdateOptions{})
		}, "belay-attacher-leader-election leader-election"},
		"list VolumeAttachments": {func(ctx context.Context) {
			_, _ = own.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		}, "belay-attacher workload-high"},
		"record an attach": {func(ctx context.Context) {
			_, _ = own.StorageV1().VolumeAttachments().Patch(ctx, "none", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
		}, "belay-attacher workload-high"},
	} {
		wait.Until(t, what+" is served by "+tt.want, func() bool { // the API server learns of them by a watch
			tt.send(t.Context())
			return flow() == tt.want
		})
	}
}
