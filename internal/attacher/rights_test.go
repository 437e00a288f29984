package attacher

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// asked is one request of a service account, as the API server wrote it down.
type asked struct {
	User      struct{ Username string }
	Verb      string
	ObjectRef struct{ APIGroup, Resource, Subresource string }
	At        metav1.MicroTime `json:"requestReceivedTimestamp"`
	Status    metav1.Status    `json:"responseStatus"`
}

// right is what RBAC has to grant for it: "patch storage.k8s.io/volumeattachments/status".
func (r asked) right() string {
	return right(r.Verb, r.ObjectRef.APIGroup, strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/"))
}

func right(verb, group, resource string) string { return verb + " " + group + "/" + resource }

// askedBy reads what a service account asked for since a time: the rights, and those it lacked.
func askedBy(t *testing.T, user string, since time.Time) (rights, refused map[string]bool) {
	t.Helper()
	content, err := os.ReadFile(server.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	rights, refused = map[string]bool{}, map[string]bool{}
	for line := range bytes.Lines(content) {
		var r asked
		if json.Unmarshal(line, &r) != nil || r.User.Username != user || r.At.Time.Before(since) || r.ObjectRef.Resource == "" {
			continue // the last line may still be half written
		}
		rights[r.right()] = true
		if r.Status.Code == http.StatusForbidden {
			refused[r.right()] = true
		}
	}
	return rights, refused
}

// documents decodes each document of YAML files into a T; kinds that are not wanted are left out.
func documents[T any](t *testing.T, kinds []string, paths ...string) []T {
	t.Helper()
	var found []T
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for {
			one, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			var kind metav1.TypeMeta
			if err := errors.Join(err, yaml.Unmarshal(one, &kind)); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if !slices.Contains(kinds, kind.Kind) {
				continue
			}
			var document T
			if err := yaml.Unmarshal(one, &document); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			found = append(found, document)
		}
	}
	return found
}

// granted lists the rights in manifests.
func granted(t *testing.T, paths ...string) map[string]bool {
	t.Helper()
	rights := map[string]bool{}
	for _, role := range documents[rbacv1.ClusterRole](t, []string{"ClusterRole", "Role"}, paths...) { // a Role has the same fields
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights[right(verb, group, resource)] = true
					}
				}
			}
		}
	}
	if len(rights) == 0 {
		t.Fatal("no rules in ", paths)
	}
	return rights
}

// podSpec is that of the one Deployment of a manifest.
func podSpec(t *testing.T, path string) corev1.PodSpec {
	t.Helper()
	deployments := documents[appsv1.Deployment](t, []string{"Deployment"}, path)
	if len(deployments) != 1 {
		t.Fatalf("%s has %d Deployments", path, len(deployments))
	}
	return deployments[0].Spec.Template.Spec
}

// container is the one called csi-attacher.
func container(t *testing.T, pod corev1.PodSpec) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == "csi-attacher" })
	if i < 0 {
		t.Fatal("there is no container csi-attacher")
	}
	return pod.Containers[i]
}

// containerArgs are the container's arguments as kubelet makes them, with the driver's socket in the
// place of its mounted one, and a loopback address in that of all addresses.
func containerArgs(c corev1.Container, socket, address string) []string {
	var args []string
	for _, arg := range c.Args {
		arg = strings.ReplaceAll(arg, "$(ADDRESS)", socket)
		args = append(args, strings.ReplaceAll(arg, "=:8080", "="+address))
	}
	return args
}

// upstreamManifests is the folder of csi-attacher's own example.
func upstreamManifests(t *testing.T) string {
	t.Helper()
	upstreamPath(t) // where that is built, so was its module downloaded
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/kubernetes-csi/external-attacher/v4")
	download.Dir = "../../lab" // its go.mod has the version
	text, err := download.Output()
	var module struct{ Dir, Version string }
	if err := errors.Join(err, json.Unmarshal(text, &module)); err != nil {
		t.Fatalf("find the module of csi-attacher: %v: %s", err, text)
	}
	if module.Version != "v4.12.0" {
		t.Fatalf("the lab builds csi-attacher %s; this test is about v4.12.0", module.Version)
	}
	return filepath.Join(module.Dir, "deploy/kubernetes")
}

// serviceAccount applies manifests and gives the credential of an account that they name, once the API server grants
// what they say: it learns of its rules by a watch.
func serviceAccount(t *testing.T, namespace, name string, paths ...string) *envtest.AuthenticatedUser {
	t.Helper()
	config := apiServer(t)
	if err := applyFile(t.Context(), paths...); err != nil {
		t.Fatal(err)
	}
	account := envtest.User{Name: userOf(namespace, name), Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}}
	reviews := kubernetes.NewForConfigOrDie(config).AuthorizationV1().SubjectAccessReviews()
	for right := range granted(t, paths...) {
		verb, what, _ := strings.Cut(right, " ")
		parts := append(strings.Split(what, "/"), "")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: account.Name, Groups: account.Groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Group: parts[0], Resource: parts[1], Subresource: parts[2],
			},
		}}
		eventually(t, right+" is granted to "+account.Name, func() bool {
			answer, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed
		})
	}
	user, err := server.env.AddUser(account, nil)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func userOf(namespace, name string) string { return "system:serviceaccount:" + namespace + ":" + name }

func writeKubeconfig(t *testing.T, user *envtest.AuthenticatedUser) string {
	t.Helper()
	content, err := user.KubeConfig()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := errors.Join(err, os.WriteFile(path, content, 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

// csi-attacher's own example works with the program swapped: its arguments, its environment, its
// probe, and the rights of its rbac.yaml, of which belay-attacher needs no more.
func TestUpstreamsExampleWithTheProgramSwapped(t *testing.T) {
	w := newWorld(t)
	example := upstreamManifests(t)
	user := serviceAccount(t, "default", "csi-attacher", filepath.Join(example, "rbac.yaml"))
	c := container(t, podSpec(t, filepath.Join(example, "deployment.yaml")))
	if len(c.Args) != 4 || !strings.Contains(strings.Join(c.Args, " "), "--csi-address=$(ADDRESS) --leader-election --http-endpoint=:8080") {
		t.Fatalf("the example's arguments are not the ones that this test knows: %v", c.Args)
	}
	w.node("node1")
	w.volume("pv1")
	began, address := time.Now(), freeAddress()
	cmd := exec.Command(programPath(t), append(containerArgs(c, w.driver.address, address), "--kubeconfig", writeKubeconfig(t, user))...)
	cmd.Env = []string{"MY_NAME=csi-attacher-0", "ADDRESS=" + w.driver.address} // no PATH, no HOME, as in the image
	p := run(t, cmd)

	attachAndDetach(w, "pv1")
	probe := c.LivenessProbe.HTTPGet
	if probe.Port.String() != c.Ports[0].Name || scrape(t, address, probe.Path) != "ok" {
		t.Errorf("the example's probe %v fails", probe)
	}
	scrape(t, address, "/metrics", "csi_sidecar_operations_seconds_count")
	p.stop(syscall.SIGTERM)
	rights, refused := askedBy(t, userOf("default", "csi-attacher"), began)
	if len(rights) < 5 {
		t.Errorf("the audit log has only %v", rights)
	}
	for name := range refused {
		t.Errorf("refused under csi-attacher's rules: %s", name)
	}
}

// attachAndDetach is a whole life of a volume, its PersistentVolume's end included.
func attachAndDetach(w *world, pv string) {
	w.t.Helper()
	va := w.attachment(pv, "node1")
	w.until(va, "attached", isAttached)
	if err := w.client.CoreV1().PersistentVolumes().Delete(w.t.Context(), w.name(pv), metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.delete(va)
	w.until(va, "gone", isGone)
	w.untilPV(pv, false)
}

// What deploy/belay-attacher grants and what the program asks for are the same, both ways. It is
// given occasion for everything: a secret, a lost reply, and an API server that does not stream lists.
func TestShippedRightsAreWhatIsUsed(t *testing.T) {
	w := newWorld(t)
	paths := []string{"../../deploy/belay-attacher/rbac.yaml", "../../deploy/belay-attacher/rbac-secrets.yaml"}
	user := serviceAccount(t, "belay-system", "belay-attacher", paths...)
	w.node("node1")
	w.secret("s1", map[string][]byte{"key": []byte("value")})
	w.volume("pv1", withSecret(w, "s1"))
	began := time.Now()
	args := []string{"--kubeconfig", throughLossyProxy(t, user.Config()), "--csi-address", w.driver.address,
		"--leader-election", "--leader-election-namespace", "belay-system", "--leader-election-retry-period=100ms"}
	p := run(t, exec.Command(programPath(t), args...))
	attachAndDetach(w, "pv1")
	p.stop(syscall.SIGTERM)
	// What client-go does where lists are not streamed: API servers before 1.34.
	w.volume("pv2")
	lister := exec.Command(programPath(t), args...)
	lister.Env = append(os.Environ(), "KUBE_FEATURE_WatchListClient=false")
	p = run(t, lister)
	attachAndDetach(w, "pv2")
	p.stop(syscall.SIGTERM)

	want := granted(t, paths...)
	got, refused := askedBy(t, userOf("belay-system", "belay-attacher"), began)
	for name := range refused {
		t.Errorf("refused: %s", name)
	}
	for name := range want {
		if !got[name] {
			t.Errorf("granted and not asked for (take it out of the rules, or add an occasion for it): %s", name)
		}
	}
	for name := range got {
		if !want[name] {
			t.Errorf("asked for and in no rule: %s", name)
		}
	}
	t.Logf("asked for: %v", slices.Sorted(maps.Keys(got)))
}

// throughLossyProxy gives a kubeconfig whose server loses the reply to the first finalizer.
func throughLossyProxy(t *testing.T, config *rest.Config) string {
	t.Helper()
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	lost := &lossy{RoundTripper: transport, left: 1, reply: true, matches: func(r *http.Request, body string) bool {
		return strings.Contains(r.URL.Path, "/volumeattachments/") && strings.Contains(body, "csi.alpha.kubernetes.io/node-id")
	}}
	proxy := &httputil.ReverseProxy{Transport: lost, FlushInterval: -1,
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		if lost.left != 0 {
			t.Error("no reply was lost")
		}
	})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: front.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		CurrentContext: "c",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// auditServiceAccounts has an API server write down what service accounts ask for.
func auditServiceAccounts(env *envtest.Environment, dir string) (log string, err error) {
	policy, log := filepath.Join(dir, "policy.json"), filepath.Join(dir, "audit.log")
	err = os.WriteFile(policy, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}`), 0o600)
	args := env.ControlPlane.GetAPIServer().Configure()
	args.Set("audit-policy-file", policy).Set("audit-log-path", log).Set("audit-log-mode", "blocking")
	return log, err
}
