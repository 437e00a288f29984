package kubectl

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/testing/apiserver"
)

func heldLease(namespace, name, holder string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now},
	}
}

// component is a running pod of the control plane.
func component(namespace, name, image string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: "well-a", Containers: []corev1.Container{{Name: "c", Image: image, Command: command}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// wellCluster is a cluster that kube-controller-manager serves, with one driver on one of two nodes.
func wellCluster(t *testing.T) {
	t.Helper()
	server.Start(t)
	if err := client.IgnoreAlreadyExists(server.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "default"}})); err != nil {
		t.Fatal(err)
	}
	create(t, node("well-a"))
	create(t, node("well-b"))
	create(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}})
	create(t, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "well-a"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "well-a"}}}})
	upstream := component("kube-system", "kcm-1", "kube-controller-manager:v1", "kube-controller-manager", "--controllers=*")
	upstream.Labels = map[string]string{"component": "kube-controller-manager"}
	create(t, upstream)
	create(t, heldLease("kube-system", "kube-controller-manager", "cp-1_u"))
	create(t, component("drivers", "attacher-0", "example.com/csi-attacher:v4.8.0", "csi-attacher", "--leader-election", "--timeout=1m"))
	create(t, heldLease("drivers", "external-attacher-leader-disk-example-com", "attacher-0"))
	create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "attacher"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"patch"}, APIGroups: []string{storagev1.GroupName}, Resources: []string{"volumeattachments"}},
	}})
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "attacher"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "attacher"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "drivers", Name: "default"}},
	})
	create(t, heldLease("kube-system", diagnosis.Recovery, "recovery-0"))
	ready := sourceOf("well-a", "belay-system", "bmc")
	ready.Status.Conditions[0].Status, ready.Status.Conditions[0].Reason = metav1.ConditionTrue, "SaidOn"
	create(t, ready)
}

// changing is what differs between two runs.
var changing = regexp.MustCompile(`v1\.\d+\.\d+\S*|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|renewed \S+ ago`)

// TestCheck compares the text with a stored one, and the other outputs and exit statuses with what they should have.
func TestCheck(t *testing.T) {
	server.Start(t)
	namespaces(t, "drivers")
	wellCluster(t)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	t.Setenv("LC_ALL", "C.UTF-8")
	well := run(t, kubeconfig, "check")
	want, err := os.ReadFile(filepath.Join("testdata", "check.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got := changing.ReplaceAllString(well.out, "(varies)"); got != string(want) || well.status != StatusClear {
		t.Errorf("exit status %d, got:\n%s\nwant:\n%s\n%s", well.status, got, want, well.err)
	}
	if ready := run(t, kubeconfig, "check", "--take-over", "--observe=0", "-o", "short", "--ascii"); ready.status != StatusBlocked || !strings.Contains(ready.out, "take-over\nxx kube-controller-manager: its attach/detach controller is on") || strings.ContainsAny(ready.out, "√×‼") {
		t.Errorf("take-over, exit status %d:\n%s%s", ready.status, ready.out, ready.err)
	}

	tainted := node("well-c")
	tainted.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "x", Effect: corev1.TaintEffectNoExecute}}
	create(t, tainted)
	ill := run(t, kubeconfig, "check", "-o", "json")
	var report preflight.ClusterHealth
	if err := json.Unmarshal([]byte(ill.out), &report); err != nil || ill.status != StatusBlocked || report.Result != preflight.Failed || report.Kind != "ClusterHealth" {
		t.Errorf("%v, exit status %d: %s%s", err, ill.status, ill.out, ill.err)
	}
	began := time.Now()
	waited := run(t, kubeconfig, "check", "--wait", "--timeout=1s", "-o", "short")
	if waited.status != StatusBlocked || time.Since(began) < time.Second || !strings.Contains(waited.err, "checks that fail: 1\nStopped waiting after 1s.") || !strings.Contains(waited.out, "× out-of-service taint") {
		t.Errorf("--wait, exit status %d:\n%s%s", waited.status, waited.out, waited.err)
	}
	done := make(chan answer)
	go func() { done <- run(t, kubeconfig, "check", "--wait", "--timeout=5m", "-o", "short") }()
	tainted.Spec.Taints = nil
	if err := server.Client.Update(t.Context(), tainted); err != nil {
		t.Fatal(err)
	}
	if healed := <-done; healed.status != StatusClear {
		t.Errorf("--wait until it is well, exit status %d:\n%s%s", healed.status, healed.out, healed.err)
	}
	for _, args := range [][]string{{"--timeout=1s"}, {"--wait", "--timeout=-1s"}, {"--observe=-1s"}, {"-o", "wide"}, {"now"}} {
		if wrong := run(t, kubeconfig, append([]string{"check"}, args...)...); wrong.status != StatusError || wrong.err == "" {
			t.Errorf("%v: exit status %d: %s", args, wrong.status, wrong.err)
		}
	}
}

// TestCheckUnread: what may not or could not be read is unknown and named, and no name from a namespace that may not be read appears.
func TestCheckUnread(t *testing.T) {
	server.Start(t)
	namespaces(t, "checked", "veil")
	create(t, node("unread-a", "v-veil"))
	create(t, node("unread-b"))
	held(t, "veil", "v-veil", "unread-a", "unread-b")
	create(t, heldLease("veil", "external-attacher-leader-disk-example-com", "veil-attacher"))
	for _, user := range []string{member(t, "checker", "checked"), apiserver.Kubeconfig(t, server.User(t, "without-rights"))} {
		for _, format := range []string{"", "short", "json", "yaml"} {
			args := []string{"check", "--ascii", "--take-over", "--observe=0"}
			if format != "" {
				args = append(args, "-o", format)
			}
			got := run(t, user, args...)
			for _, name := range []string{"veil-claim", "veil-holder", "veil-waiter", "veil-password", "veil-attacher", "namespace veil", "veil/", `"veil"`} {
				if strings.Contains(got.out+got.err, name) {
					t.Errorf("%v shows %q:\n%s%s", args, name, got.out, got.err)
				}
			}
			if got.status == StatusClear || !strings.Contains(got.out, "list pods") {
				t.Errorf("%v: exit status %d, and no permission is named:\n%s%s", args, got.status, got.out, got.err)
			}
		}
	}
	failing := broken{resource: "csinodes"}
	failing.fail = status(http.StatusInternalServerError, "InternalError") //nolint:bodyclose // the proxy closes it
	got := run(t, through(t, failing), "check", "-o", "json")
	var report preflight.ClusterHealth
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.status == StatusClear {
		t.Fatalf("%v, exit status %d: %s%s", err, got.status, got.out, got.err)
	}
	if !slices.ContainsFunc(report.Checks, func(c preflight.Check) bool {
		return c.Category == preflight.CategoryPermissions && c.Result == preflight.Unknown
	}) {
		t.Errorf("an error of the API server is not unknown: %s", got.out)
	}
}
