package attachdetach

import (
	"context"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestFlowSchemasMatch sends requests with a token of the shipped ServiceAccount and
// reads from the answers how the API server sorted them: the lease as other leases, the
// rest as requests of kube-controller-manager.
func TestFlowSchemasMatch(t *testing.T) {
	l := newLab(t)
	clients, err := kubernetes.NewForConfig(cluster.admin)
	l.must(err)
	token, err := clients.CoreV1().ServiceAccounts("belay-system").CreateToken(l.ctx, "belay-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	l.must(err)
	config := rest.AnonymousClientConfig(cluster.admin)
	config.BearerToken = token.Status.Token
	var header http.Header
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if err == nil {
				header = answer.Header
			}
			return answer, err
		})
	})
	own, err := kubernetes.NewForConfig(config)
	l.must(err)
	names := l.flowNames()
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
			stale := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "belay-controller", ResourceVersion: "1"}}
			_, err := own.CoordinationV1().Leases("kube-system").Update(ctx, stale, metav1.UpdateOptions{})
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
		var got string
		var answer error
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // it learns of them by a watch
			answer = tt.send(l.ctx)
			got = names[header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)] + " " +
				names[header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)]
			if got == tt.want {
				break
			}
		}
		if got != tt.want {
			t.Errorf("%s: served by %q, want %q (%v)", what, got, tt.want, answer)
		}
	}
}

// flowNames are the names of all FlowSchemas and priority levels by UID.
func (l *lab) flowNames() map[string]string {
	l.Helper()
	names := map[string]string{}
	schemas, levels := &flowcontrolv1.FlowSchemaList{}, &flowcontrolv1.PriorityLevelConfigurationList{}
	l.must(l.List(l.ctx, schemas))
	l.must(l.List(l.ctx, levels))
	for i := range schemas.Items {
		names[string(schemas.Items[i].UID)] = schemas.Items[i].Name
	}
	for i := range levels.Items {
		names[string(levels.Items[i].UID)] = levels.Items[i].Name
	}
	return names
}
