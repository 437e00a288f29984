package kubectl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/far"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// farSample is FAR's own example, whose source is named in package far.
const farSample = "../far/testdata/template-v0.7.0.yaml"

// templateIn makes a template of FAR in the cluster.
func templateIn(t *testing.T, namespace string) {
	t.Helper()
	text, err := os.ReadFile(farSample)
	if err != nil {
		t.Fatal(err)
	}
	made := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &made.Object); err != nil {
		t.Fatal(err)
	}
	made.SetNamespace(namespace)
	create(t, made)
}

// sources are the FenceSources of the names, as they are stored.
func sources(t *testing.T, names ...string) (found int) {
	t.Helper()
	for _, name := range names {
		err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, &fencingv1.FenceSource{})
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if !apierrors.IsNotFound(err) {
			found++
		}
	}
	return found
}

// sourceVersion is the version of a FenceSource.
func sourceVersion(t *testing.T, name string) string {
	t.Helper()
	stored := &fencingv1.FenceSource{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, stored); err != nil {
		t.Fatal(err)
	}
	return stored.ResourceVersion
}

// TestImportFAR: FAR's own example, in a cluster and in a file, is shown and nothing is written before --confirm; what it shows can be applied; a FenceSource
// that exists is left as it is; and what is missing, the API, a right or a file, is named with what to do.
func TestImportFAR(t *testing.T) {
	server.Start(t)
	namespaces(t, "far")
	create(t, node("worker-0"))
	admin := apiserver.Kubeconfig(t, server.Config())
	if got := run(t, admin, "import", "far"); got.status != StatusError || !strings.Contains(got.err, "has no FenceAgentsRemediationTemplates") || !strings.Contains(got.err, "with -f") {
		t.Errorf("without FAR: exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	server.Apply(t, "testdata/far-crd.yaml")
	templates := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": far.Group + "/" + far.Version, "kind": far.Kind + "List"}}
	wait.Until(t, "templates of FAR are served", func() bool { return server.Client.List(t.Context(), templates) == nil })
	if got := run(t, admin, "import", "far"); got.status != StatusBlocked || !strings.Contains(got.out, "# REFUSED: 0 FenceSources of 0 ") || !strings.Contains(got.err, "Nothing was changed.") {
		t.Errorf("without a template: exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	templateIn(t, "far")
	names := []string{"master-0", "master-1", "master-2", "worker-0", "worker-1", "worker-2"}
	other := sourceOf("worker-2", "far", "another")
	create(t, other)
	before := sourceVersion(t, "worker-2")

	stranger := apiserver.Kubeconfig(t, server.User(t, "stranger-to-far"))
	reads := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{far.Group}, Resources: []string{far.Resource}, Verbs: []string{"list"}}, {APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
	}}
	reads.Name = "reader-of-far"
	server.Grant(t, reads, "reader-of-far")
	reader := apiserver.Kubeconfig(t, server.User(t, "reader-of-far"))
	writes := &rbacv1.ClusterRole{}
	writes.Name = "writer-without-secrets"
	writes.Rules = append(reads.Rules, rbacv1.PolicyRule{APIGroups: []string{"fencing.belay.dev"}, Resources: []string{"fencesources"}, Verbs: []string{"create", "get"}})
	server.Grant(t, writes, "writer-without-secrets")
	writer := apiserver.Kubeconfig(t, server.User(t, "writer-without-secrets"))
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("kind: Secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := apiserver.Kubeconfig(t, &rest.Config{Host: "http://127.0.0.1:1"})
	for name, tc := range map[string]struct {
		who    string
		args   []string
		status int
		says   string
	}{
		"only shown":             {admin, nil, StatusBlocked, "# worker-1, from template far/fenceagentsremediationtemplate-default: Accepted"},
		"what differs":           {admin, nil, StatusBlocked, "belay proves Off"},
		"who is not here":        {admin, nil, StatusBlocked, "node worker-1 is not in this cluster"},
		"another FenceSource":    {admin, nil, StatusBlocked, "worker-2, from template far/fenceagentsremediationtemplate-default: Refused: the node has another FenceSource"},
		"the line of the Secret": {admin, nil, StatusBlocked, "annotate secret -n far belay-node-worker-1 fencing.belay.dev/addresses=192.168.111.1"},
		"for JSON":               {admin, []string{"-o", "json"}, StatusBlocked, `"kind": "ImportPlan"`},
		"one namespace":          {admin, []string{"-n", "default"}, StatusBlocked, "0 FenceSources of 0"},
		"of a file":              {admin, []string{"-n", "elsewhere", "-f", farSample}, StatusBlocked, "from template elsewhere/fenceagentsremediationtemplate-default: Accepted"},
		"no such file":           {admin, []string{"-f", "no-such-file"}, StatusError, "no-such-file"},
		"a file of other kinds":  {admin, []string{"-f", broken}, StatusError, "it has no FenceAgentsRemediationTemplate"},
		"standard input":         {admin, []string{"-f", "-"}, StatusError, "read -: it has no FenceAgentsRemediationTemplate"},
		"an argument":            {admin, []string{"x"}, StatusError, "x"},
		"no cluster":             {nowhere, []string{"-f", farSample}, StatusError, "read which nodes there are"},
		"may not read":           {stranger, nil, StatusError, "cannot list resource"},
		"may not read, the step": {stranger, nil, StatusError, "name a namespace with -n, or a file with -f"},
		"may not write":          {reader, nil, StatusBlocked, "cannot create resource"},
		"may not read Secrets":   {writer, []string{"--confirm"}, StatusBlocked, "may not read each Secret of level 0"},
	} {
		got := run(t, tc.who, append([]string{"import", "far"}, tc.args...)...)
		if got.status != tc.status || !strings.Contains(got.out+got.err, tc.says) {
			t.Errorf("%s: exit status %d, want %d and %q:\n%s%s", name, got.status, tc.status, tc.says, got.out, got.err)
		}
		if n := sources(t, names...); n != 1 {
			t.Fatalf("%s: %d FenceSources were written", name, n-1)
		}
	}

	got := run(t, admin, "import", "far", "--confirm")
	if got.status != StatusBlocked || !strings.Contains(got.err, "5 of 6 FenceSources are in the cluster") || sources(t, names...) != len(names) {
		t.Errorf("confirmed: exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	t.Cleanup(func() { removeSources(t, names...) })
	if sourceVersion(t, "worker-2") != before {
		t.Error("the FenceSource that existed was changed")
	}
	again := run(t, admin, "import", "far")
	if strings.Count(again.out, ": Unchanged\n") != 5 {
		t.Errorf("again: exit status %d:\n%s%s", again.status, again.out, again.err)
	}
	removeSources(t, names...)
	shown := run(t, admin, "import", "far")
	if shown.status != StatusClear || !strings.Contains(shown.err, "add --confirm") {
		t.Errorf("exit status %d: %s", shown.status, shown.err)
	}
	t.Logf("$ kubectl belay import far\n%s%s(exit status %d)", shown.out, shown.err, shown.status)
	applied(t, shown.out, names)
	if got := run(t, admin, "import", "far", "--confirm"); got.status != StatusClear || !strings.Contains(got.out, ": Unchanged\n") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}

// applied creates the FenceSources of an output.
func applied(t *testing.T, output string, names []string) {
	t.Helper()
	made := 0
	for document := range strings.SplitSeq(output, "---\n") {
		source := &fencingv1.FenceSource{}
		if err := yaml.UnmarshalStrict([]byte(document), source); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if source.Name == "" { // the comments at the top
			continue
		}
		create(t, source)
		made++
	}
	if made != len(names) {
		t.Errorf("%d FenceSources in:\n%s", made, output)
	}
}

func removeSources(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		source := &fencingv1.FenceSource{}
		source.Name = name
		if err := server.Client.Delete(context.WithoutCancel(t.Context()), source); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
}

// TestImportHostileFile: no text of a template leaves its comment or its value.
func TestImportHostileFile(t *testing.T) {
	server.Start(t)
	file := filepath.Join(t.TempDir(), "hostile.yaml")
	text := `apiVersion: fence-agents-remediation.medik8s.io/v1alpha1
kind: FenceAgentsRemediationTemplate
metadata: {name: t, namespace: far}
spec:
  template:
    spec:
      agent: fence_x
      nodeSecretNames: {n: "a; id"}
      sharedparameters: {"--a\n---\nkind: Secret": "1", "--action": "x\n---\nkind: Secret", "--plug": "p: {q}\u001b[31m", "--ip": "192.0.2.1"}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, apiserver.Kubeconfig(t, server.Config()), "import", "far", "-f", file)
	if strings.Contains(got.out, "\nkind: Secret") || strings.Contains(got.out, "\x1b") || strings.Count(got.out, "\n---\n") != 1 || strings.Contains(got.out, kube.AddressesAnnotation) {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	refused := far.ImportPlan{Sources: []far.PlannedSource{{Node: "n", Result: far.Refused, Message: "a\n---\nkind: Secret"}}}
	if text, err := importText(style{}, &refused, 1); err != nil || strings.Contains(text, "\nkind: Secret") {
		t.Errorf("%v:\n%s", err, text)
	}
}
