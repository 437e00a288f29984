package charts

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// TestWhatIsWrittenOnNodes: with the shipped rights and policies, belay's accounts write on Nodes what their work needs, and nothing else.
func TestWhatIsWrittenOnNodes(t *testing.T) {
	cluster.Start(t)
	ctx := t.Context()
	var actor rbacv1.ClusterRole
	for _, o := range render(t, "recovery.enabled=true") {
		switch {
		case strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") && o.GetName() == "belay-nodes":
			must(t, cluster.Client.Create(ctx, o))
			t.Cleanup(func() { _ = cluster.Client.Delete(context.WithoutCancel(ctx), o) })
		case o.GetKind() == "ClusterRole" && (o.GetName() == "belay-controller" || o.GetName() == "belay-recovery-actor"):
			role := apiserver.Decode[rbacv1.ClusterRole](t, []*unstructured.Unstructured{o}, "ClusterRole")[0]
			actor.Rules = append(actor.Rules, role.Rules...)
		}
	}
	user := apiserver.ServiceAccountName(namespace, "belay-controller") // with recovery in it, it has both roles
	actor.Name = "nodes-test"
	cluster.Grant(t, &actor, user)
	belay, err := client.New(cluster.User(t, user), client.Options{})
	must(t, err)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "written", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"belay.dev/volumes-root": "r", "other": "o"}},
	}
	must(t, cluster.Client.Create(ctx, node))
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}} // not that of a new Node
	must(t, cluster.Client.Update(ctx, node))
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must(t, cluster.Client.Status().Update(ctx, node))
	write := func(status bool, patch string) error {
		to, body := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, client.RawPatch(types.MergePatchType, []byte(patch))
		if status {
			return belay.Status().Patch(ctx, to, body)
		}
		return belay.Patch(ctx, to, body)
	}
	tries := 0
	wait.Until(t, "the policy is enforced", func() bool {
		tries++ // a write that changes nothing is allowed
		return apierrors.IsInvalid(write(false, fmt.Sprintf(`{"metadata":{"labels":{"try":"%d"}}}`, tries)))
	})
	const persons, isolated = `{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}`, `{"key":"fencing.belay.dev/isolated","value":"belay-1","effect":"NoSchedule"}`
	taints := func(all ...string) string { return fmt.Sprintf(`{"spec":{"taints":[%s]}}`, strings.Join(all, ",")) }
	for _, c := range []struct {
		name    string
		status  bool
		patch   string
		allowed bool
	}{
		{"isolate", false, taints(persons, isolated), true},
		{"a fence's taint beside a person's, with its boot", false,
			`{"metadata":{"annotations":{"belay.dev/fenced-boot":"b"}},` + taints(persons, isolated, `{"key":"node.kubernetes.io/out-of-service","value":"belay-1","effect":"NoSchedule"}`)[1:], true},
		{"untaint", false, `{"metadata":{"annotations":{"belay.dev/fenced-boot":null}},` + taints(persons)[1:], true},
		{"a person's taint away", false, taints(isolated), false},
		{"a person's taint set", false, taints(persons, `{"key":"node.kubernetes.io/out-of-service","value":"x","effect":"NoSchedule"}`), false},
		{"another taint", false, taints(persons, `{"key":"a","effect":"NoExecute"}`), false},
		{"cordon", false, `{"spec":{"unschedulable":true}}`, false},
		{"label", false, `{"metadata":{"labels":{"zone":"b"}}}`, false},
		{"finalizer", false, `{"metadata":{"finalizers":["a.b/c"]}}`, false},
		{"another's annotation", false, `{"metadata":{"annotations":{"other":null}}}`, false},
		{"the opt-out", false, `{"metadata":{"annotations":{"fencing.belay.dev/opt-out":"true"}}}`, false},
		{"the record of the node's agent", true, `{"metadata":{"annotations":{"belay.dev/volumes-root":"x"}}}`, false},
		{"report", true, `{"metadata":{"annotations":{"belay.dev/report-checked-at":"now"}},"status":{"volumesAttached":[{"name":"v","devicePath":""}]}}`, true},
		{"label by the status", true, `{"metadata":{"labels":{"zone":"b"}}}`, false},
		{"Ready", true, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, false},
		{"in use", true, `{"status":{"volumesInUse":["v"]}}`, false},
		{"addresses", true, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, false},
	} {
		err := write(c.status, c.patch)
		if c.allowed && err != nil || !c.allowed && !apierrors.IsInvalid(err) {
			t.Errorf("%s: allowed %v, want %v: %v", c.name, err == nil, c.allowed, err)
		}
	}
	// Others are not held by it.
	must(t, cluster.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"zone":"b"}}}`))))
}

// TestNamespaceIsRestricted: the namespace that the chart makes admits no pod that the restricted Pod Security Standard forbids, except where belay itself runs
// on the network of the host.
func TestNamespaceIsRestricted(t *testing.T) {
	for want, values := range map[string][]string{"restricted": {"createNamespace=true"}, "": {"createNamespace=true", "hostNetwork.enabled=true"}} {
		for _, o := range render(t, values...) {
			if o.GetKind() == "Namespace" && o.GetLabels()["pod-security.kubernetes.io/enforce"] != want {
				t.Errorf("%q: %v", values, o.GetLabels())
			}
		}
	}
}

// TestMetricsAreReadByRight: the Prometheus operator reads with a token that can do nothing else, and each part may ask the API server who reads.
func TestMetricsAreReadByRight(t *testing.T) {
	for _, secure := range []bool{true, false} {
		reviewers, deployments, reader, monitor := 0, 0, 0, ""
		for _, o := range render(t, "recovery.enabled=true", "podMonitor.enabled=true", fmt.Sprintf("metrics.secure=%v", secure)) {
			switch text := fmt.Sprint(o.Object); {
			case o.GetKind() == "ClusterRoleBinding" && strings.Contains(text, "system:auth-delegator"):
				reviewers++
			case o.GetKind() == "Deployment":
				deployments++
				if plain := strings.Contains(text, "--metrics-secure=false"); plain == secure {
					t.Errorf("%s with metrics.secure=%v: --metrics-secure=false is there: %v", o.GetName(), secure, plain)
				}
			case o.GetKind() == "PodMonitor":
				monitor = text
			case o.GetName() == "belay-metrics-reader":
				reader++
			}
		}
		if got := strings.Contains(monitor, "belay-metrics-reader"); got != secure || (reader == 4) != secure || (reviewers == deployments) != secure || deployments != 3 {
			t.Errorf("metrics.secure=%v: %d of %d parts may ask, %d objects of the reader, PodMonitor %s", secure, reviewers, deployments, reader, monitor)
		}
	}
}
