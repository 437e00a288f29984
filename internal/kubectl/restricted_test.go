package kubectl

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
)

// member may read one namespace and what has none.
func member(t *testing.T, name, namespace string) (kubeconfig string) {
	t.Helper()
	read := []string{"get", "list", "watch"}
	server.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "persistentvolumes"}, Verbs: read},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments", "csinodes", "csidrivers"}, Verbs: read},
	}}, name)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "persistentvolumeclaims", "events"}, Verbs: read},
	}}
	create(t, role)
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: name}},
	})
	server.AwaitRights(t, []rbacv1.ClusterRole{{ObjectMeta: role.ObjectMeta, Rules: role.Rules}}, name)
	return apiserver.Kubeconfig(t, server.User(t, name))
}

// TestRestrictedReader: a reader of one namespace gets an answer, learns which permissions would show more, and sees no name from
// another namespace, in any output of any object that can be asked about.
func TestRestrictedReader(t *testing.T) {
	server.Start(t)
	namespaces(t, "mine", "hushed")
	create(t, node("a", "v-mine", "v-hushed"))
	create(t, node("b"))
	held(t, "mine", "v-mine", "a", "b")
	held(t, "hushed", "v-hushed", "a", "b")
	kubeconfig := member(t, "member", "mine")

	waiting := run(t, kubeconfig, "explain", "pod/mine-waiter", "-n", "mine")
	if waiting.status != StatusBlocked || !strings.Contains(waiting.out, "HeldByRunningPod") || !strings.Contains(waiting.out, "pod mine-holder uses the volume on node a") {
		t.Errorf("exit status %d, want 2 and the holder:\n%s%s", waiting.status, waiting.out, waiting.err)
	}
	if !strings.Contains(waiting.out, "list leases") {
		t.Errorf("the missing permission is not named:\n%s", waiting.out)
	}
	fence := fenceOn("a", 1)
	fence.Status.Advice = "read Secret hushed/hushed-password for claim hushed/hushed-claim"
	create(t, fence)
	create(t, sourceOf("a", "hushed", "hushed-password"))
	server.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "member-fences"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"fencing.belay.dev"}, Resources: []string{"nodefences", "fencesources"}, Verbs: []string{"get", "list"}},
	}}, "member")
	hushed := kube.AttachmentName("v-hushed", driver, "a")
	for _, args := range [][]string{
		{"explain", "pod/mine-waiter", "-n", "mine"}, {"explain", "pvc/mine-claim", "-n", "mine"}, {"explain", "pv/v-mine"}, {"explain", "pv/v-hushed"},
		{"explain", "node/a"}, {"explain", "node/b"}, {"explain", "va/" + hushed}, {"force-detach", "va/" + hushed},
		{"explain", "pod/hushed-waiter-that-is-guessed", "-n", "mine"},
		{"evidence", "node/a"}, {"fence", "a"}, {"unfence", "a"},
		{"timeline", "pod/mine-waiter", "-n", "mine"}, {"timeline", "pvc/mine-claim", "-n", "mine"}, {"timeline", "pv/v-mine"}, {"timeline", "pv/v-hushed"},
	} {
		for _, format := range []string{"", "json", "yaml"} {
			command := args
			if format != "" {
				command = append(command, "-o", format)
			}
			got := run(t, kubeconfig, command...)
			for _, name := range []string{"hushed-claim", "hushed-holder", "hushed-waiter ", "hushed-password", "namespace: hushed", `"hushed"`, "hushed/", "namespace hushed"} {
				if strings.Contains(got.out+got.err, name) {
					t.Errorf("%v shows %q:\n%s%s", command, name, got.out, got.err)
				}
			}
		}
	}
}

// TestReaderWithoutRights gets plain words, not a panic and not "clear".
func TestReaderWithoutRights(t *testing.T) {
	server.Start(t)
	kubeconfig := apiserver.Kubeconfig(t, server.User(t, "stranger"))
	for _, object := range []string{"pod/x", "pvc/x", "pv/x", "node/x", "va/x", "sts/x", "deploy/x", "rs/x", "ds/x", "job/x"} {
		got := run(t, kubeconfig, "explain", object)
		if got.status != StatusError || !strings.Contains(got.err, "permission") {
			t.Errorf("%s: exit status %d, want 1 and the missing permission:\n%s%s", object, got.status, got.out, got.err)
		}
	}
}

// TestMissingObject names it.
func TestMissingObject(t *testing.T) {
	server.Start(t)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	for _, object := range []string{"pod/x", "pvc/x", "pv/x", "node/x", "va/x"} {
		got := run(t, kubeconfig, "explain", object)
		if got.status != StatusError || !strings.Contains(got.err, "/x does not exist") {
			t.Errorf("%s: exit status %d, want 1 and that it does not exist:\n%s%s", object, got.status, got.out, got.err)
		}
	}
	for _, args := range [][]string{{"explain"}, {"explain", "x"}, {"explain", "secret/x"}, {"explain", "pod/"}, {"explain", "pod/x", "-o", "xml"}, {"frob"}, {"evidence", "pod/x"}, {"evidence"}, {"evidence", "x", "-o", "name"}, {"fence"}, {"unfence", "pvc/x"}, {"wait-detached", "pod/x"}, {"timeline", "node/x"}, {"timeline", "pod/x"}, {"force-detach", "pv/x"}} {
		if got := run(t, kubeconfig, args...); got.status != StatusError || got.err == "" {
			t.Errorf("%v: exit status %d: %s", args, got.status, got.err)
		}
	}
}
