package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/testing/apiserver"
)

// look runs `belay-controller preflight` as a user.
func look(t *testing.T, kubeconfig string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"preflight", "--kubeconfig=" + kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	content, _ := cmd.Output() // the exit code is what is asked for
	return cmd.ProcessState.ExitCode(), string(content)
}

// reader writes a kubeconfig for a user with exactly the permissions of the rules.
func reader(t *testing.T, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	cluster.Start(t)
	config := cluster.User(t, name)
	cluster.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, name)
	return apiserver.Kubeconfig(t, config)
}

func rule(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
}

// The rights that its help names are enough for preflight; without them it names the
// missing ones, and is not ready.
func TestPreflightNeedsOnlyToRead(t *testing.T) {
	listWatch := []string{"list", "watch"}
	enough := reader(t, "enough", rule("", listWatch, "nodes", "events"), rule("storage.k8s.io", listWatch, "volumeattachments"),
		rule("", []string{"list"}, "pods", "persistentvolumes"))
	confirmed := "--" + preflight.ConfirmFlag
	code, out := look(t, enough, "--observe=500ms", confirmed)
	if code != 0 || !strings.Contains(out, "READY: belay-controller may start.") || strings.Contains(out, "UNKNOWN") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if !strings.Contains(out, "Cluster: https://") || !strings.Contains(out, "kubeconfig "+enough) {
		t.Errorf("it does not name the cluster and the kubeconfig:\n%s", out)
	}
	t.Logf("exit code %d:\n%s", code, out)

	code, out = look(t, enough, "--observe=0")
	if code != 1 || !strings.Contains(out, "UNCONFIRMED") || !strings.Contains(out, confirmed) {
		t.Errorf("no kube-controller-manager pod, not confirmed: exit code %d:\n%s", code, out)
	}

	code, out = look(t, reader(t, "less", rule("", listWatch, "nodes"), rule("", []string{"list"}, "pods")), "--observe=0", "-o", "json")
	var report preflight.Report
	must(t, json.Unmarshal([]byte(out), &report))
	if code != 1 || report.Ready {
		t.Errorf("exit code %d, ready %v", code, report.Ready)
	}
	for _, want := range []string{"list volumeattachments", "list events", "list persistentvolumes"} {
		if !strings.Contains(out, "needs the permission to "+want) {
			t.Errorf("it does not name the right to %s:\n%s", want, out)
		}
	}
}

// TestPreflightPhases: with a real API server, a step is ready only in its phase, and the rights that the help names suffice.
func TestPreflightPhases(t *testing.T) {
	listWatch := []string{"list", "watch"}
	enough := reader(t, "phases", rule("", listWatch, "nodes", "events"), rule("storage.k8s.io", listWatch, "volumeattachments"),
		rule("", []string{"list"}, "pods", "persistentvolumes"), rule("coordination.k8s.io", []string{"list"}, "leases"),
		rule("apps", []string{"list"}, "deployments"))
	step := func(phase string, status int, says string) {
		t.Helper()
		code, out := look(t, enough, "--observe=0", "--phase="+phase)
		if code != status || !strings.Contains(out, says) {
			t.Errorf("--phase=%s: exit code %d, want %d and %q:\n%s", phase, code, status, says, out)
		}
	}
	upstream := upstreamPod("--controllers=*")
	must(t, cluster.Client.Create(t.Context(), upstream))
	step("prepare", 0, "Next: disable persistentvolume-attach-detach-controller")
	step("take-over", 1, "NOT READY: belay-controller must not start yet.")
	must(t, cluster.Client.Delete(t.Context(), upstream, client.GracePeriodSeconds(0)))
	upstream = upstreamPod("--controllers=*,-persistentvolume-attach-detach-controller")
	must(t, cluster.Client.Create(t.Context(), upstream))
	defer func() { _ = cluster.Client.Delete(context.Background(), upstream, client.GracePeriodSeconds(0)) }()
	step("prepare", 0, "is off already")
	step("take-over", 0, "Next: install belay-controller")

	now, holder := metav1.NowMicro(), "belay-0_u"
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now},
	}
	must(t, cluster.Client.Create(t.Context(), lease))
	step("roll-back", 1, "lease belay-system/belay-controller: held by belay-0_u")
	must(t, cluster.Client.Delete(t.Context(), lease))
	step("roll-back", 1, "deployment belay-system/belay-controller: replicas 2")
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"}}
	patch := func(text string, values ...any) client.Patch {
		return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, text, values...))
	}
	scale := func(replicas int) {
		t.Helper()
		must(t, cluster.Client.Patch(context.Background(), deployment, patch(`{"spec":{"replicas":%d}}`, replicas)))
	}
	scale(0)
	defer scale(2)
	step("roll-back", 1, "has not seen yet")
	must(t, cluster.Client.Status().Patch(t.Context(), deployment, patch(`{"status":{"observedGeneration":%d,"replicas":1}}`, deployment.Generation)))
	step("roll-back", 1, "replicas 0, 1 still there")
	must(t, cluster.Client.Status().Patch(t.Context(), deployment, patch(`{"status":{"replicas":0}}`)))
	step("roll-back", 0, "Next: enable persistentvolume-attach-detach-controller")
	if code, _ := look(t, enough, "--phase=later"); code != 2 {
		t.Errorf("an unknown phase: exit code %d, want 2", code)
	}
}

// A live controller of another make is seen: its reports and events need a confirmation,
// its attachments forbid to start.
func TestPreflightSeesWhoWrites(t *testing.T) {
	s := newSite(t, 0)
	admin := reader(t, "looker", rule("*", []string{"list", "watch", "get"}, "*"))
	other := upstreamClient(t)
	s.foreignReport(other, "old")
	confirmed := "--" + preflight.ConfirmFlag
	if code, out := look(t, admin, "--observe=100ms", confirmed); code != 0 || !strings.Contains(out, "kube-controller-manager (1)") {
		t.Errorf("an old report: exit code %d:\n%s", code, out)
	}
	meanwhile := func(act func(n int), args ...string) (code int, out string) { // upstream at work
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			for n := 0; ctx.Err() == nil; n++ {
				act(n)
				time.Sleep(50 * time.Millisecond)
			}
		}()
		code, out = look(t, admin, append(args, "--observe=5s")...)
		cancel()
		<-done
		return code, out
	}
	code, out := meanwhile(func(n int) { s.foreignEvent(other, s.volumeName(n)) })
	if code != 1 || !strings.Contains(out, "kube-controller-manager emitted SuccessfulAttachVolume") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	code, out = meanwhile(func(n int) { s.foreignReport(other, fmt.Sprint("v", n)) })
	if code != 1 || !strings.Contains(out, "kube-controller-manager changed status.volumesAttached") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	code, out = meanwhile(func(n int) { s.foreignAttachment(other, n) }, confirmed)
	if code != 1 || !strings.Contains(out, "another attach/detach controller is running") {
		t.Errorf("exit code %d:\n%s", code, out)
	}

	pod := upstreamPod("--controllers=*,-attachdetach")
	must(t, cluster.Client.Create(t.Context(), pod))
	defer func() { _ = cluster.Client.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) }()
	if code, out := look(t, admin, "--observe=0"); code != 0 || !strings.Contains(out, "its attach/detach controller is off") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// Without the flag it uses $KUBECONFIG, as kubectl does, and reports so.
func TestPreflightUsesKubeconfigVariable(t *testing.T) {
	path := reader(t, "variable", rule("*", []string{"list", "watch", "get"}, "*"))
	t.Setenv("KUBECONFIG", path)
	code, out := look(t, "", "--observe=0", "--"+preflight.ConfirmFlag, "-o", "json")
	var report preflight.Report
	must(t, json.Unmarshal([]byte(out), &report))
	if code != 0 || report.Cluster.Kubeconfig != path || report.Cluster.Context == "" || report.Cluster.Server == "" {
		t.Errorf("exit code %d, cluster %+v", code, report.Cluster)
	}
}
