package rights

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
)

// TestTokenOfNodeHealthCheck: who has the rights that NodeHealthCheck gets may ask for fences, and neither begin one nor write what one rests on: what a request can do is
// what the rules of a silent node leave to it (TestAskedNode of internal/fencing).
func TestTokenOfNodeHealthCheck(t *testing.T) {
	fencingServed(t)
	installCRDs(t, deployed+"fencing.belay.dev_belayremediations.yaml", deployed+"fencing.belay.dev_belayremediationtemplates.yaml")
	asks := bound(t, "of-node-healthcheck", "../../deploy/belay-medik8s/node-healthcheck.yaml", "belay-ext-remediation")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-node-healthcheck"}}
	create(t, node)
	remediation := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-node-healthcheck"}}
	const touch = `{"metadata":{"annotations":{"a":"b"}}}`
	attempts(t, asks, attempt{"creates", "create", remediation, "", byNone}, attempt{"patches", "patch", remediation, touch, byNone})
	for _, o := range []client.Object{
		node, &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		lease("kube-node-lease", "x"), lease("medik8s-leases", "node-x"), secret(),
	} {
		attempts(t, asks, attempt{"creates", "create", o, "", byRBAC}, attempt{"patches", "patch", o, touch, byRBAC}, attempt{"deletes", "delete", o, "", byRBAC})
	}
	attempts(t, asks, attempt{"patches the status of", "status", remediation, touch, byRBAC}, attempt{"reads a Secret", "get", secret(), "", byRBAC})
}
