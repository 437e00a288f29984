package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"belay.dev/belay/internal/preflight"
)

// look runs `belay-controller preflight` as a user.
func look(t *testing.T, kubeconfig string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"preflight", "--kubeconfig=" + kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	content, _ := cmd.Output() // the exit code is what is asked for
	return cmd.ProcessState.ExitCode(), string(content)
}

// reader writes a kubeconfig for a user that may do what the rules say, and no more.
func reader(t *testing.T, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	if cluster.WithWatch == nil {
		t.Skip("needs kube-apiserver and etcd: set KUBEBUILDER_ASSETS to their folder")
	}
	user, err := cluster.env.AddUser(envtest.User{Name: name}, nil)
	must(t, err)
	must(t, cluster.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}))
	must(t, cluster.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{{Kind: "User", Name: name, APIGroup: rbacv1.GroupName}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}))
	content, err := user.KubeConfig()
	must(t, err)
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, content, 0o600))
	return path
}

func rule(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
}

// The rights that its help names are enough for preflight; without them it says which
// are missing, and that it is not ready.
func TestPreflightNeedsOnlyToRead(t *testing.T) {
	listWatch := []string{"list", "watch"}
	enough := reader(t, "enough", rule("", listWatch, "nodes"), rule("storage.k8s.io", listWatch, "volumeattachments"),
		rule("", []string{"list"}, "pods", "persistentvolumes"))
	code, out := look(t, enough, "--observe=500ms")
	if code != 0 || !strings.Contains(out, "READY: belay-controller may start.") || strings.Contains(out, "UNKNOWN") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	t.Logf("exit code %d:\n%s", code, out)

	code, out = look(t, reader(t, "less", rule("", listWatch, "nodes"), rule("", []string{"list"}, "pods")), "--observe=0", "-o", "json")
	var report preflight.Report
	must(t, json.Unmarshal([]byte(out), &report))
	if code != 1 || report.Ready {
		t.Errorf("exit code %d, ready %v", code, report.Ready)
	}
	for _, want := range []string{"needs the right to list volumeattachments", "needs the right to list persistentvolumes"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

// A live controller of another make is seen.
func TestPreflightSeesWhoWrites(t *testing.T) {
	s := newSite(t, 0)
	admin := reader(t, "looker", rule("*", []string{"list", "watch", "get"}, "*"))
	s.foreignReport("kube-controller-manager", "old")
	code, out := look(t, admin, "--observe=100ms")
	if code != 0 {
		t.Errorf("an old report refuses:\n%s", out)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // upstream at work
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			s.foreignReport("kube-controller-manager", string(rune('a'+n%26)))
			time.Sleep(50 * time.Millisecond)
		}
	}()
	code, out = look(t, admin, "--observe=5s")
	cancel()
	<-done
	if code != 1 || !strings.Contains(out, "kube-controller-manager changed status.volumesAttached") {
		t.Errorf("exit code %d:\n%s", code, out)
	}

	pod := upstreamPod("--controllers=*,-attachdetach")
	must(t, cluster.Create(t.Context(), pod))
	defer func() { _ = cluster.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) }()
	if code, out := look(t, admin, "--observe=0"); code != 0 || !strings.Contains(out, "its attach/detach controller is off") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
