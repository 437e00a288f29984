package kubectl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
)

const readerFile = "../../deploy/kubectl-belay/reader.yaml"

// ownNamespace creates the namespace of belay's programs, unless another test has.
func ownNamespace(t *testing.T) {
	t.Helper()
	err := server.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system"}})
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
}

// TestReaderSuffices: with the ClusterRole of deploy/kubectl-belay no command lacks a permission to read, and it does not suffice to write.
func TestReaderSuffices(t *testing.T) {
	server.Start(t)
	namespaces(t, "reading")
	ownNamespace(t)
	create(t, node("reading-a", "v-reading"))
	create(t, node("reading-b"))
	held(t, "reading", "v-reading", "reading-a", "reading-b")
	kubeconfig := apiserver.Kubeconfig(t, server.ServiceAccount(t, "belay-system", "belay-reader", readerFile))
	for _, args := range []string{
		"explain pod/reading-waiter -n reading", "explain node/reading-a", "stuck -A", "map", "timeline pv/v-reading", "orphans", "evidence node/reading-a",
		"wait-detached node/reading-a", "check", "check --take-over --observe=100ms", "bundle -f " + filepath.Join(t.TempDir(), "b.tar.gz"),
	} {
		words := strings.Fields(args)
		var got answer
		if words[0] == "wait-detached" {
			got = waitDetached(t, kubeconfig, words[1])
		} else {
			got = run(t, kubeconfig, words...)
		}
		if text := got.out + got.err; strings.Contains(text, "forbidden") || strings.Contains(text, "ermission to ") || strings.Contains(text, "you lack permissions") || strings.Contains(got.err, "error:") || text == "" {
			t.Errorf("%s, exit status %d:\n%s", args, got.status, text)
		}
	}
	if got := run(t, kubeconfig, "fence", "node/reading-a", "--confirm", "--reason=test", "--confirm-powered-off"); got.status == StatusClear {
		t.Errorf("it may write:\n%s%s", got.out, got.err)
	}
}

// TestReaderPod: the pod of docs/kubectl-belay.md is admitted under the restricted Pod Security Standard, with the ServiceAccount that may read.
func TestReaderPod(t *testing.T) {
	server.Start(t)
	ownNamespace(t)
	server.Apply(t, readerFile)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	create(t, namespace)
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "belay-reader"}})
	overrides, err := os.ReadFile("../../deploy/kubectl-belay/overrides.json")
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(overrides string) (string, error) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "--kubeconfig", apiserver.Kubeconfig(t, server.Config()),
			"-n", namespace.Name, "run", "belay", "--restart=Never", "--image=REPO/kubectl-belay:VERSION", "--override-type=strategic", "--overrides="+overrides,
			"--dry-run=server", "-o=jsonpath={.spec.serviceAccountName} {.spec.containers[*].image} {.spec.containers[*].args}", "--", "explain", "pod/db-0").CombinedOutput()
		return string(out), err
	}
	if out, err := kubectl(string(overrides)); err != nil || out != `belay-reader REPO/kubectl-belay:VERSION ["explain","pod/db-0"]` {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := kubectl(strings.Replace(string(overrides), `"allowPrivilegeEscalation": false, `, "", 1)); err == nil {
		t.Errorf("the standard is not enforced: %s", out)
	}
}

// TestReaderReadsNoLogs: logs may have what no object has. They have a role of their own, which has nothing else and is bound to no account.
func TestReaderReadsNoLogs(t *testing.T) {
	const logs = "get /pods/log"
	if apiserver.Granted(t, readerFile)[logs] {
		t.Errorf("%s grants %s", readerFile, logs)
	}
	file := filepath.Join(filepath.Dir(readerFile), "log-reader.yaml")
	if granted := apiserver.Granted(t, file); len(granted) != 1 || !granted[logs] {
		t.Errorf("%s grants %v", file, granted)
	}
	if objects := apiserver.Manifests(t, file); len(objects) != 1 {
		t.Errorf("%s has %d objects", file, len(objects))
	}
}
