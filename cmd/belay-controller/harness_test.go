package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// childVariable makes the test binary be belay-controller: tests that stop and kill it
// need a process.
const childVariable = "BELAY_TEST_CONTROLLER"

// settleVariable is the duration for which such a process expects writes of the controller before it.
const settleVariable = "BELAY_TEST_SETTLE"

// fillVariable is the time without full caches after which such a process checks its permissions.
const fillVariable = "BELAY_TEST_FILL"

// leaseTimes are those of a process under test.
type leaseTimes struct{ duration, renewDeadline, retry time.Duration }

var (
	// lasting: no leader loses its lease because the machine is slow, and no candidate gets it by polling in time: a
	// watch event reports when the lease is free.
	lasting = leaseTimes{30 * time.Minute, 20 * time.Minute, 10 * time.Minute}
	// shipped are the defaults, except that the lease is requested more often.
	shipped = leaseTimes{15 * time.Second, 10 * time.Second, time.Second}
)

// manifest has the shipped permissions.
const manifest = "../../deploy/belay-controller/belay-controller.yaml"

// cluster is the API server of the package's tests. It records what the processes under test change.
var cluster apiserver.Server

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		settle, _ = time.ParseDuration(os.Getenv(settleVariable))
		if soon, err := time.ParseDuration(os.Getenv(fillVariable)); err == nil {
			fillPatience = soon
		}
		main()
		os.Exit(0)
	}
	cluster.Audit = `{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata", "userGroups": ["under-test"]}`
	cluster.Prepare = func(tb testing.TB) {
		tb.Helper()
		cluster.Apply(tb, manifest)
	}
	os.Exit(cluster.Main(m))
}

// controller is a running belay-controller.
type controller struct {
	*process.Process

	t               *testing.T
	user            string
	health, metrics string // addresses
}

// start runs a belay-controller under the shipped rights, as a user of its own, so that
// the audit log tells one from another.
func start(t *testing.T, name string, args ...string) *controller {
	t.Helper()
	return startWith(t, name, lasting, args...)
}

func startWith(t *testing.T, name string, lease leaseTimes, args ...string) *controller {
	t.Helper()
	cluster.Start(t)
	user := name + "-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	p := &controller{t: t, user: user, health: process.FreeAddress(), metrics: process.FreeAddress()}
	base := []string{
		"--kubeconfig=" + kubeconfig(t, user), "--leader-elect-resource-name=belay-controller",
		"--leader-elect-lease-duration=" + lease.duration.String(), "--leader-elect-renew-deadline=" + lease.renewDeadline.String(),
		"--leader-elect-retry-period=" + lease.retry.String(),
		"--health-probe-bind-address=" + p.health, "--metrics-bind-address=" + p.metrics, "--metrics-secure=false",
	}
	t.Cleanup(freeLease) // after its end
	p.Process = execute(t, append(base, args...)...)
	return p
}

// execute starts the program; it ends with the test.
func execute(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, process.TestBinary(t, childVariable, "1", args...))
}

// ask asks one of its HTTP endpoints.
func (p *controller) ask(address, path string) (status int, body string) {
	p.t.Helper()
	return process.Get(p.t, address, path)
}

// leads waits until it holds the lease and has caught up.
func (p *controller) leads() {
	p.t.Helper()
	p.WaitLog("Successfully acquired lease")
	p.ready()
}

func (p *controller) ready() {
	p.t.Helper()
	wait.Until(p.t, p.user+" is ready", func() bool { code, _ := p.ask(p.health, "/readyz"); return code == http.StatusOK })
}

// kubeconfig writes a file for a user with the shipped rights.
func kubeconfig(t *testing.T, user string) string {
	t.Helper()
	config := cluster.User(t, user, "under-test")
	bind(t, user)
	return apiserver.Kubeconfig(t, config)
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
	cluster.Start(t)
	must(t, cluster.Client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: s.name, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
	}}))
	must(t, cluster.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	for n := range volumes {
		s.volume(n)
	}
	t.Cleanup(s.remove)
}

func (s *site) volumeName(n int) string { return fmt.Sprintf("%s-%d", s.name, n) }

func (s *site) volume(n int) {
	s.Helper()
	ctx, name := s.Context(), s.volumeName(n)
	pv := fixture.PersistentVolume(name, driver, name)
	claim := fixture.Claim(s.name, name, pv)
	must(s.T, cluster.Client.Create(ctx, claim))
	claim.Status.Phase = corev1.ClaimBound
	must(s.T, cluster.Client.Status().Update(ctx, claim))
	must(s.T, cluster.Client.Create(ctx, fixture.Bind(pv, claim)))
}

// pod puts a pod that uses the volume on the node.
func (s *site) pod(n int) {
	s.Helper()
	must(s.T, cluster.Client.Create(s.Context(), fixture.Pod(s.name, s.volumeName(n), s.name, s.volumeName(n))))
}

func (s *site) attachmentName(n int) string {
	return kube.AttachmentName(s.volumeName(n), driver, s.name)
}

// attachment is the volume's, nil if there is none.
func (s *site) attachment(n int) *storagev1.VolumeAttachment {
	s.Helper()
	va := &storagev1.VolumeAttachment{}
	err := cluster.Client.Get(s.Context(), client.ObjectKey{Name: s.attachmentName(n)}, va)
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
	must(s.T, cluster.Client.Status().Patch(s.Context(), va, client.RawPatch(types.MergePatchType, []byte(`{"status": {"attached": true}}`))))
}

// gone is kubelet and user together: the pod has ended and is deleted.
func (s *site) gone(n int) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: s.volumeName(n)}}
	must(s.T, cluster.Client.Delete(s.Context(), pod, client.GracePeriodSeconds(0)))
}

func (s *site) node() *corev1.Node {
	s.Helper()
	node := &corev1.Node{}
	must(s.T, cluster.Client.Get(s.Context(), client.ObjectKey{Name: s.name}, node))
	return node
}

// remove takes all away, so that the next test's leader has nothing to do with it.
func (s *site) remove() {
	ctx := context.Background()
	pods, vas := &corev1.PodList{}, &storagev1.VolumeAttachmentList{}
	_ = cluster.Client.List(ctx, pods, client.InNamespace(s.name))
	for i := range pods.Items {
		_ = cluster.Client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))
	}
	_ = cluster.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	_ = cluster.Client.List(ctx, vas)
	for i := range vas.Items {
		if vas.Items[i].Spec.NodeName == s.name {
			_ = cluster.Client.Delete(ctx, &vas.Items[i])
		}
	}
}

// lease is the one that they fight for.
func lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l := &coordinationv1.Lease{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "belay-controller"}, l))
	return l
}

// freeLease deletes the lease of a process that ended without releasing it: otherwise the next test would wait for it.
func freeLease() {
	_ = cluster.Client.Delete(context.Background(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "belay-controller"}})
}

// runsOut makes the lease of a process that has ended be over in a second, in place of the minutes for which a leader
// holds it that a busy machine must not depose.
func runsOut(t *testing.T) {
	t.Helper()
	must(t, cluster.Client.Patch(t.Context(), lease(t), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"leaseDurationSeconds": 1}}`))))
}

// writes are the requests of a process, except those for its lease and its events.
func (p *controller) writes() []apiserver.Request {
	p.t.Helper()
	requests, err := cluster.Requests(p.user)
	must(p.t, err)
	return slices.DeleteFunc(requests, func(r apiserver.Request) bool {
		return r.ObjectRef.Resource == "leases" || r.ObjectRef.Resource == "events"
	})
}

// pause stops the process as a frozen machine would.
func (p *controller) pause()  { p.Signal(syscall.SIGSTOP) }
func (p *controller) resume() { p.Signal(syscall.SIGCONT) }
