package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"belay.dev/belay/internal/kube"
)

// childVariable makes the test binary be belay-controller: tests that stop and kill it
// need a process.
const childVariable = "BELAY_TEST_CONTROLLER"

// settleVariable is the duration for which such a process expects writes of the controller before it.
const settleVariable = "BELAY_TEST_SETTLE"

// fillVariable is after how long without full caches such a process looks at its rights.
const fillVariable = "BELAY_TEST_FILL"

// patience is how long a test waits for what must come, also on a machine that is busy with much else.
const patience = 2 * time.Minute

// leaseTimes are those of a process under test.
type leaseTimes struct{ duration, renewDeadline, retry time.Duration }

var (
	// lasting: no leader loses its lease because the machine is slow, and no candidate gets it by asking in time: it is
	// told when the lease is free.
	lasting = leaseTimes{30 * time.Minute, 20 * time.Minute, 10 * time.Minute}
	// shipped are the defaults, but that a lease is asked for more often.
	shipped = leaseTimes{15 * time.Second, 10 * time.Second, time.Second}
)

// cluster is the API server that all tests of this package share.
var cluster struct {
	client.WithWatch
	env      *envtest.Environment
	config   *rest.Config
	auditLog string
	dir      string
}

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		settle, _ = time.ParseDuration(os.Getenv(settleVariable))
		if soon, err := time.ParseDuration(os.Getenv(fillVariable)); err == nil {
			fillPatience = soon
		}
		main()
		os.Exit(0)
	}
	os.Exit(withCluster(m.Run))
}

func withCluster(run func() int) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return run()
	}
	dir, err := os.MkdirTemp("", "belay-controller-")
	if err != nil {
		return failed(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cluster.dir, cluster.auditLog, cluster.env = dir, filepath.Join(dir, "audit.log"), &envtest.Environment{}
	policy := filepath.Join(dir, "policy.json")
	// The users of the processes under test, and no reads: only what they change matters.
	err = os.WriteFile(policy, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata", "userGroups": ["under-test"]}, {"level": "None"}]}`), 0o600)
	if err != nil {
		return failed(err)
	}
	args := cluster.env.ControlPlane.GetAPIServer().Configure()
	args.Append("authorization-mode", "Node").Append("enable-admission-plugins", "NodeRestriction")
	args.Set("audit-policy-file", policy).Set("audit-log-path", cluster.auditLog).Set("audit-log-mode", "blocking")
	cluster.config, err = cluster.env.Start()
	defer func() { _ = cluster.env.Stop() }()
	if err != nil {
		return failed(err)
	}
	cluster.config.QPS = -1
	if cluster.WithWatch, err = client.NewWithWatch(cluster.config, client.Options{Scheme: clientscheme.Scheme}); err != nil {
		return failed(err)
	}
	if err := install(); err != nil {
		return failed(err)
	}
	return run()
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, "belay-controller tests:", err)
	return 1
}

// install applies the shipped manifest, but for the workloads: nothing runs pods.
func install() error {
	content, err := os.ReadFile("../../deploy/belay-controller/belay-controller.yaml")
	if err != nil {
		return err
	}
	documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := cluster.Create(context.Background(), object); err != nil {
			return fmt.Errorf("install %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

// process is one running belay-controller.
type process struct {
	*testing.T
	user            string
	cmd             *exec.Cmd
	exited          chan struct{}
	health, metrics string // addresses

	mu    sync.Mutex
	log   []string
	lines chan struct{} // closed and replaced at each line
}

// start runs a belay-controller under the shipped rights, as a user of its own, so that
// the audit log tells one from another.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return startWith(t, name, lasting, args...)
}

func startWith(t *testing.T, name string, lease leaseTimes, args ...string) *process {
	t.Helper()
	if cluster.WithWatch == nil {
		t.Skip("needs kube-apiserver and etcd: set KUBEBUILDER_ASSETS to their folder")
	}
	user := name + "-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	p := &process{
		T: t, user: user, exited: make(chan struct{}), lines: make(chan struct{}),
		health: freeAddress(), metrics: freeAddress(),
	}
	base := []string{
		"--kubeconfig=" + kubeconfig(t, user), "--leader-elect-resource-name=belay-controller",
		"--leader-elect-lease-duration=" + lease.duration.String(), "--leader-elect-renew-deadline=" + lease.renewDeadline.String(),
		"--leader-elect-retry-period=" + lease.retry.String(),
		"--health-probe-bind-address=" + p.health, "--metrics-bind-address=" + p.metrics,
	}
	t.Cleanup(freeLease) // after its end
	p.run(append(base, args...)...)
	return p
}

// run starts it; it ends with the test.
func (p *process) run(args ...string) {
	p.Helper()
	p.cmd = exec.Command(os.Args[0], args...) //nolint:noctx // ended by the test's own signals
	p.cmd.Env = append(os.Environ(), childVariable+"=1")
	pipe, err := p.cmd.StderrPipe()
	must(p.T, err)
	must(p.T, p.cmd.Start())
	go p.read(pipe)
	p.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if p.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.Logf("log of %s:\n%s", p.user, strings.Join(p.log[max(0, len(p.log)-60):], "\n"))
		}
	})
}

func (p *process) read(pipe io.Reader) {
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.mu.Lock()
		p.log = append(p.log, lines.Text())
		close(p.lines)
		p.lines = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
	close(p.exited)
}

// said tells whether a line of the log contains the words.
func (p *process) said(words string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.log, func(line string) bool { return strings.Contains(line, words) })
}

// says waits for a line of the log that contains the words.
func (p *process) says(words string) {
	p.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		more := p.lines
		p.mu.Unlock()
		if p.said(words) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			p.Fatalf("%s never said %q", p.user, words)
		}
	}
}

func (p *process) signal(s os.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.Fatal(err)
	}
}

// ends waits for the end and gives the exit code.
func (p *process) ends(within time.Duration) int {
	p.Helper()
	select {
	case <-p.exited:
	case <-time.After(within):
		p.Fatalf("%s is still there after %v", p.user, within)
	}
	return p.cmd.ProcessState.ExitCode()
}

// ask asks one of its HTTP endpoints.
func (p *process) ask(address, path string) (code int, body string) {
	p.Helper()
	answer, err := http.Get("http://" + address + path) //nolint:noctx // bounded by the test
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		p.Fatal(err)
	}
	return answer.StatusCode, string(content)
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// leads waits until it holds the lease and has caught up.
func (p *process) leads() {
	p.Helper()
	p.says("Successfully acquired lease")
	p.ready()
}

func (p *process) ready() {
	p.Helper()
	eventually(p.T, p.user+" is ready", func() bool { code, _ := p.ask(p.health, "/readyz"); return code == http.StatusOK })
}

// kubeconfig writes a file for a user with the shipped rights.
func kubeconfig(t *testing.T, user string) string {
	t.Helper()
	// The groups are those that the shipped bindings name, and the audit log's.
	added, err := cluster.env.AddUser(envtest.User{Name: user, Groups: []string{"under-test"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bind(t, user)
	content, err := added.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), user)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var addresses atomic.Int32

// freeAddress is a loopback address that nobody listens on, and nobody but who is given it will: a port of 127.0.0.1 that
// is free now may be another program's when it is used.
func freeAddress() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", 1+pid>>16, pid>>8&255, pid&255, 20000+addresses.Add(1))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const driver = "disk.test"

// site is a node and volumes that pods can be put on.
type site struct {
	*testing.T
	name string
}

func newSite(t *testing.T, volumes int) *site {
	t.Helper()
	return newNamedSite(t, strings.ToLower(t.Name()), volumes)
}

func (s *site) make(volumes int) {
	t, ctx := s.T, s.Context()
	t.Helper()
	if cluster.WithWatch == nil {
		t.Skip("needs kube-apiserver and etcd: set KUBEBUILDER_ASSETS to their folder")
	}
	must(t, cluster.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: s.name, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
	}}))
	must(t, cluster.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	for n := range volumes {
		s.volume(n)
	}
	t.Cleanup(s.remove)
}

func (s *site) volumeName(n int) string { return fmt.Sprintf("%s-%d", s.name, n) }

func (s *site) volume(n int) {
	s.Helper()
	ctx, name := s.Context(), s.volumeName(n)
	room := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: name, StorageClassName: new(""), AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{Requests: room},
		},
	}
	must(s.T, cluster.Create(ctx, claim))
	claim.Status.Phase = corev1.ClaimBound
	must(s.T, cluster.Status().Update(ctx, claim))
	must(s.T, cluster.Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: room,
			ClaimRef:               &corev1.ObjectReference{Namespace: s.name, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
		},
	}))
}

// pod puts a pod that uses the volume on the node.
func (s *site) pod(n int) {
	s.Helper()
	must(s.T, cluster.Create(s.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: s.volumeName(n)},
		Spec: corev1.PodSpec{
			NodeName:   s.name,
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.volumeName(n)},
			}}},
		},
	}))
}

func (s *site) attachmentName(n int) string {
	return kube.AttachmentName(s.volumeName(n), driver, s.name)
}

// attachment is the volume's, nil if there is none.
func (s *site) attachment(n int) *storagev1.VolumeAttachment {
	s.Helper()
	va := &storagev1.VolumeAttachment{}
	err := cluster.Get(s.Context(), client.ObjectKey{Name: s.attachmentName(n)}, va)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(s.T, err)
	return va
}

// attached answers for the driver.
func (s *site) attached(n int) {
	s.Helper()
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: s.attachmentName(n)}}
	must(s.T, cluster.Status().Patch(s.Context(), va, client.RawPatch(types.MergePatchType, []byte(`{"status": {"attached": true}}`))))
}

// gone is kubelet and user together: the pod has ended and is deleted.
func (s *site) gone(n int) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: s.volumeName(n)}}
	must(s.T, cluster.Delete(s.Context(), pod, client.GracePeriodSeconds(0)))
}

func (s *site) node() *corev1.Node {
	s.Helper()
	node := &corev1.Node{}
	must(s.T, cluster.Get(s.Context(), client.ObjectKey{Name: s.name}, node))
	return node
}

// remove takes all away, so that the next test's leader has nothing to do with it.
func (s *site) remove() {
	ctx := context.Background()
	pods, vas := &corev1.PodList{}, &storagev1.VolumeAttachmentList{}
	_ = cluster.List(ctx, pods, client.InNamespace(s.name))
	for i := range pods.Items {
		_ = cluster.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))
	}
	_ = cluster.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	_ = cluster.List(ctx, vas)
	for i := range vas.Items {
		if vas.Items[i].Spec.NodeName == s.name {
			_ = cluster.Delete(ctx, &vas.Items[i])
		}
	}
}

// lease is the one that they fight for.
func lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l := &coordinationv1.Lease{}
	must(t, cluster.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "belay-controller"}, l))
	return l
}

// freeLease takes the lease from a process that has ended and did not give it back: the next test would wait for it.
func freeLease() {
	_ = cluster.Delete(context.Background(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "belay-controller"}})
}

// runsOut makes the lease of a process that has ended be over in a second, in place of the minutes for which a leader
// holds it that a busy machine must not depose.
func runsOut(t *testing.T) {
	t.Helper()
	must(t, cluster.Patch(t.Context(), lease(t), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"leaseDurationSeconds": 1}}`))))
}

// write is one request from the audit log.
type write struct {
	Verb string
	User struct{ Username string }
	At   time.Time                                     `json:"requestReceivedTimestamp"`
	Ref  *struct{ Resource, Subresource, Name string } `json:"objectRef"`
	Code *struct{ Code int }                           `json:"responseStatus"`
}

// writes of a process, but for its lease and its events.
func (p *process) writes() []write {
	p.Helper()
	content, err := os.ReadFile(cluster.auditLog)
	must(p.T, err)
	var found []write
	for line := range bytes.Lines(content) {
		var w write
		if err := json.Unmarshal(line, &w); err != nil {
			continue // the last line may be half written
		}
		if w.User.Username == p.user && w.Ref != nil && w.Ref.Resource != "leases" && w.Ref.Resource != "events" {
			found = append(found, w)
		}
	}
	return found
}

// pause stops the process as a frozen machine would.
func (p *process) pause()  { p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }
