package attacher

import (
	"context"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/wait"
)

// TestFlowSchemasMatch sends requests with a token of the shipped ServiceAccount and
// reads from the answers how the API server sorted them.
func TestFlowSchemasMatch(t *testing.T) {
	server.Start(t)
	admin := kubernetes.NewForConfigOrDie(server.Config())
	server.Apply(t, "../../deploy/belay-attacher/rbac.yaml", "../../deploy/belay-attacher/flowschema.yaml")
	names := map[string]string{}
	schemas, err := admin.FlowcontrolV1().FlowSchemas().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, one := range schemas.Items {
		names[string(one.UID)] = one.Name
	}
	levels, err := admin.FlowcontrolV1().PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, one := range levels.Items {
		names[string(one.UID)] = one.Name
	}
	token, err := admin.CoreV1().ServiceAccounts(shippedNamespace).CreateToken(t.Context(), "belay-attacher", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config := rest.AnonymousClientConfig(server.Config())
	config.BearerToken = token.Status.Token
	sorted := &flowReader{names: names}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { sorted.RoundTripper = next; return sorted })
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
			return sorted.last == tt.want
		})
	}
}

// flowReader reads from each answer the FlowSchema and the priority level of its request.
type flowReader struct {
	http.RoundTripper
	names map[string]string // by UID
	last  string
}

func (f *flowReader) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(r)
	if err == nil {
		f.last = f.names[answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)] + " " +
			f.names[answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)]
	}
	return answer, err
}
