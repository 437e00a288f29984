package attacher

import (
	"encoding/json"
	"errors"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/process"
)

// askedBy returns the rights that the service account needed for its requests since a time, and those that it lacked.
func askedBy(t *testing.T, user string, since time.Time) (rights, refused map[string]bool) {
	t.Helper()
	requests, err := server.Requests(user)
	must(t, err)
	rights, refused = map[string]bool{}, map[string]bool{}
	for _, r := range requests {
		if r.At.Time.Before(since) {
			continue
		}
		rights[r.Right()] = true
		if r.Refused() {
			refused[r.Right()] = true
		}
	}
	return rights, refused
}

// podSpec is that of the one Deployment of a manifest.
func podSpec(t *testing.T, path string) corev1.PodSpec {
	t.Helper()
	deployments := apiserver.Decode[appsv1.Deployment](t, apiserver.Manifests(t, path), "Deployment")
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

// csi-attacher's own example works with the program swapped: with its arguments, its environment, its probe, and the
// permissions of its rbac.yaml, which are all that belay-attacher needs.
func TestUpstreamsExampleWithTheProgramSwapped(t *testing.T) {
	w := newWorld(t)
	example := upstreamManifests(t)
	user := server.ServiceAccount(t, "default", "csi-attacher", filepath.Join(example, "rbac.yaml"))
	c := container(t, podSpec(t, filepath.Join(example, "deployment.yaml")))
	if len(c.Args) != 4 || !strings.Contains(strings.Join(c.Args, " "), "--csi-address=$(ADDRESS) --leader-election --http-endpoint=:8080") {
		t.Fatalf("the example's arguments are not the ones that this test knows: %v", c.Args)
	}
	w.node("node1")
	w.volume("pv1")
	began, address := time.Now(), process.FreeAddress()
	cmd := exec.Command(programPath(t), append(containerArgs(c, w.driver.Address, address), "--kubeconfig", apiserver.Kubeconfig(t, user))...)
	cmd.Args = append(cmd.Args, patientTimes...)
	cmd.Env = []string{"MY_NAME=csi-attacher-0", "ADDRESS=" + w.driver.Address} // no PATH, no HOME, as in the image
	p := process.Start(t, cmd)

	attachAndDetach(w, "pv1")
	probe := c.LivenessProbe.HTTPGet
	if probe.Port.String() != c.Ports[0].Name || scrape(t, address, probe.Path) != "ok" {
		t.Errorf("the example's probe %v fails", probe)
	}
	scrape(t, address, "/metrics", "csi_sidecar_operations_seconds_count")
	p.Stop(syscall.SIGTERM)
	rights, refused := askedBy(t, apiserver.ServiceAccountName("default", "csi-attacher"), began)
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
	must(w.t, w.client.CoreV1().PersistentVolumes().Delete(w.t.Context(), w.name(pv), metav1.DeleteOptions{}))
	w.delete(va)
	w.until(va, "gone", isGone)
	w.untilPV(pv, false)
}

// The permissions that deploy/belay-attacher grants are exactly those that the program uses. The test makes it use all
// of them: with a secret, a lost reply, and an API server that does not stream lists.
func TestShippedRightsAreWhatIsUsed(t *testing.T) {
	w := newWorld(t)
	paths := []string{"../../deploy/belay-attacher/rbac.yaml", "../../deploy/belay-attacher/rbac-secrets.yaml"}
	user := server.ServiceAccount(t, "belay-system", "belay-attacher", paths...)
	w.node("node1")
	w.secret("s1", map[string][]byte{"key": []byte("value")})
	w.volume("pv1", withSecret(w, "s1"))
	began := time.Now()
	args := []string{"--kubeconfig", throughLossyProxy(t, user), "--csi-address", w.driver.Address,
		"--leader-election", "--leader-election-namespace", "belay-system"}
	// A candidate that gets no watch of the lease within the retry period does without.
	args = append(args, leaseTimes(5*time.Minute, 4*time.Minute, 30*time.Second)...)
	p := process.Start(t, exec.Command(programPath(t), args...))
	attachAndDetach(w, "pv1")
	if !held(w.lease()) {
		t.Error("there is no lease of csi-attacher's name, or it has no holder")
	}
	p.Stop(syscall.SIGTERM)
	if held(w.lease()) {
		t.Error("the lease was not released")
	}
	// What client-go does where lists are not streamed: API servers before 1.34.
	w.volume("pv2")
	lister := exec.Command(programPath(t), args...)
	lister.Env = append(os.Environ(), "KUBE_FEATURE_WatchListClient=false")
	p = process.Start(t, lister)
	attachAndDetach(w, "pv2")
	p.Stop(syscall.SIGTERM)

	want := apiserver.Granted(t, paths...)
	got, refused := askedBy(t, apiserver.ServiceAccountName("belay-system", "belay-attacher"), began)
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
	must(t, err)
	transport, err := rest.TransportFor(config)
	must(t, err)
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
	return apiserver.Kubeconfig(t, &rest.Config{Host: front.URL})
}
