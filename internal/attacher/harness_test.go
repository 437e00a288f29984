package attacher

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
)

// server is one real API server for all tests of the package; tests keep apart by
// the name of their driver.
var server struct {
	once   sync.Once
	env    *envtest.Environment
	config *rest.Config
	err    error

	dir, auditLog string // what service accounts asked for
}

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	if os.Getenv(childVariable) != "" {
		os.Exit(runAsSidecar())
	}
	if user := os.Getenv(confinedVariable); user != "" {
		os.Exit(becomeConfined(user, os.Args[1:]))
	}
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	if server.env != nil {
		if err := server.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
		}
		_ = os.RemoveAll(server.dir)
	}
	os.Exit(code)
}

// apiServer starts the API server, or skips the test.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs a real API server: set KUBEBUILDER_ASSETS to a folder with kube-apiserver and etcd")
	}
	server.once.Do(func() {
		server.env = &envtest.Environment{}
		if server.dir, server.err = os.MkdirTemp("", "belay-audit-"); server.err != nil { //nolint:usetesting // shared by the package's tests
			return
		}
		if server.auditLog, server.err = auditServiceAccounts(server.env, server.dir); server.err != nil {
			return
		}
		server.config, server.err = server.env.Start()
	})
	if server.err != nil {
		t.Fatalf("start the API server: %v", server.err)
	}
	config := rest.CopyConfig(server.config)
	config.QPS, config.Burst = -1, 0
	return config
}

// call is one call that the scripted driver received.
type call struct {
	Method  string // Publish or Unpublish
	Volume  string
	Node    string
	Publish *csispec.ControllerPublishVolumeRequest
	Secrets map[string]string
	Socket  string // that it came through
	At      time.Time
}

// scriptedDriver is a CSI driver on a unix socket that does what a test says.
type scriptedDriver struct {
	csispec.UnimplementedIdentityServer
	csispec.UnimplementedControllerServer

	name         string
	address      string
	capabilities []csispec.ControllerServiceCapability_RPC_Type
	server       *grpc.Server
	starting     whileStarting // set it before a sidecar starts
	probes       atomic.Int32

	mu       sync.Mutex
	calls    []call
	busy     map[string][]context.Context // of the calls in flight, by volume
	overlaps int                          // calls that came while another one for the volume was waited for
	answer   func(ctx context.Context, c call, nth int) (map[string]string, error)
	list     func(ctx context.Context, r *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error)
	lists    int           // ListVolumes requests received
	notify   chan struct{} // closed and replaced at each call
}

var canAttach = []csispec.ControllerServiceCapability_RPC_Type{
	csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csispec.ControllerServiceCapability_RPC_PUBLISH_READONLY,
}

func startDriver(t *testing.T, capabilities ...csispec.ControllerServiceCapability_RPC_Type) *scriptedDriver {
	t.Helper()
	dir, err := os.MkdirTemp("", "belay") //nolint:usetesting // t.TempDir() is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &scriptedDriver{
		name: driverName(t), address: filepath.Join(dir, "csi.sock"), capabilities: capabilities,
		busy: map[string][]context.Context{}, notify: make(chan struct{}),
		answer: func(context.Context, call, int) (map[string]string, error) { return nil, nil },
	}
	d.listen(t, d.address)
	return d
}

type socketKey struct{}

// listen serves on a socket, besides others or in place of one that was stopped. A
// process that has a socket of its own can be told by it.
func (d *scriptedDriver) listen(t *testing.T, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d.server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return handle(context.WithValue(ctx, socketKey{}, path), request)
	}))
	csispec.RegisterIdentityServer(d.server, d)
	csispec.RegisterControllerServer(d.server, d)
	server := d.server
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

var drivers atomic.Int64

var notNameChar = regexp.MustCompile("[^a-z0-9]+")

// driverName makes a CSI driver name of a test's name.
func driverName(t *testing.T) string {
	t.Helper()
	words := strings.Split(t.Name(), "/")
	name := strings.Trim(notNameChar.ReplaceAllString(strings.ToLower(words[len(words)-1]), "-"), "-")
	if len(name) > 35 {
		name = strings.Trim(name[:35], "-")
	}
	return fmt.Sprintf("%s-%d.csi.test", name, drivers.Add(1))
}

func (d *scriptedDriver) GetPluginInfo(ctx context.Context, _ *csispec.GetPluginInfoRequest) (*csispec.GetPluginInfoResponse, error) {
	if d.starting.info != nil {
		return d.starting.info(ctx)
	}
	return &csispec.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *scriptedDriver) Probe(ctx context.Context, _ *csispec.ProbeRequest) (*csispec.ProbeResponse, error) {
	if d.starting.probe != nil {
		return d.starting.probe(ctx, d.probes.Add(1))
	}
	return &csispec.ProbeResponse{}, nil
}

func (d *scriptedDriver) GetPluginCapabilities(context.Context, *csispec.GetPluginCapabilitiesRequest) (*csispec.GetPluginCapabilitiesResponse, error) {
	return &csispec.GetPluginCapabilitiesResponse{Capabilities: []*csispec.PluginCapability{{
		Type: &csispec.PluginCapability_Service_{Service: &csispec.PluginCapability_Service{Type: csispec.PluginCapability_Service_CONTROLLER_SERVICE}},
	}}}, nil
}

func (d *scriptedDriver) ControllerGetCapabilities(ctx context.Context, _ *csispec.ControllerGetCapabilitiesRequest) (*csispec.ControllerGetCapabilitiesResponse, error) {
	if d.starting.capabilities != nil {
		if err := d.starting.capabilities(ctx); err != nil {
			return nil, err
		}
	}
	reply := &csispec.ControllerGetCapabilitiesResponse{}
	for _, c := range d.capabilities {
		reply.Capabilities = append(reply.Capabilities, &csispec.ControllerServiceCapability{
			Type: &csispec.ControllerServiceCapability_Rpc{Rpc: &csispec.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return reply, nil
}

func (d *scriptedDriver) ControllerPublishVolume(ctx context.Context, r *csispec.ControllerPublishVolumeRequest) (*csispec.ControllerPublishVolumeResponse, error) {
	reply, err := d.serve(ctx, call{Method: "Publish", Volume: r.GetVolumeId(), Node: r.GetNodeId(), Publish: r, Secrets: r.GetSecrets()})
	if err != nil {
		return nil, err
	}
	return &csispec.ControllerPublishVolumeResponse{PublishContext: reply}, nil
}

func (d *scriptedDriver) ControllerUnpublishVolume(ctx context.Context, r *csispec.ControllerUnpublishVolumeRequest) (*csispec.ControllerUnpublishVolumeResponse, error) {
	if _, err := d.serve(ctx, call{Method: "Unpublish", Volume: r.GetVolumeId(), Node: r.GetNodeId(), Secrets: r.GetSecrets()}); err != nil {
		return nil, err
	}
	return &csispec.ControllerUnpublishVolumeResponse{}, nil
}

func (d *scriptedDriver) serve(ctx context.Context, c call) (map[string]string, error) {
	d.mu.Lock()
	c.Socket, _ = ctx.Value(socketKey{}).(string)
	c.At = time.Now()
	nth := len(d.calls)
	d.calls = append(d.calls, c)
	if slices.ContainsFunc(d.busy[c.Volume], func(other context.Context) bool { return other.Err() == nil }) {
		d.overlaps++
	}
	d.busy[c.Volume] = append(d.busy[c.Volume], ctx)
	answer := d.answer
	close(d.notify)
	d.notify = make(chan struct{})
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.busy[c.Volume] = slices.DeleteFunc(d.busy[c.Volume], func(other context.Context) bool { return other == ctx })
		d.mu.Unlock()
	}()
	return answer(ctx, c, nth)
}

// answers sets what the driver answers from now on; nth counts all calls.
func (d *scriptedDriver) answers(f func(ctx context.Context, c call, nth int) (map[string]string, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = f
}

// received lists the calls in words.
func (d *scriptedDriver) received() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var words []string
	for _, c := range d.calls {
		words = append(words, c.Method+" "+c.Node)
	}
	return words
}

// waitCalls waits until the driver received n calls.
func (d *scriptedDriver) waitCalls(t *testing.T, n int) []call {
	t.Helper()
	deadline := time.After(patience)
	for {
		d.mu.Lock()
		calls, notify := d.calls, d.notify
		d.mu.Unlock()
		if len(calls) >= n {
			return calls
		}
		select {
		case <-notify:
		case <-deadline:
			t.Fatalf("driver received %v, want %d calls", d.received(), n)
		}
	}
}

// patience is how long a test waits for what must happen, also on a machine that is busy with much else.
const patience = 2 * time.Minute

// world is one driver, its attacher, and a client to look at the API server.
type world struct {
	t      *testing.T
	driver *scriptedDriver
	config *rest.Config
	client *kubernetes.Clientset
	prefix string

	logger klog.Logger // the attacher's; set it before start

	stop func() // ends the attacher and waits for it
}

// newWorld makes a driver and the objects around it; the attacher is not started.
func newWorld(t *testing.T, capabilities ...csispec.ControllerServiceCapability_RPC_Type) *world {
	t.Helper()
	config := apiServer(t)
	client := kubernetes.NewForConfigOrDie(config)
	if capabilities == nil {
		capabilities = canAttach
	}
	w := &world{t: t, driver: startDriver(t, capabilities...), config: config, client: client, logger: klog.Background(), stop: func() {}}
	w.prefix = strings.TrimSuffix(w.driver.name, ".csi.test")
	return w
}

// start runs an attacher; it is ended with the test.
func (w *world) start(change ...func(*Config)) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), w.logger))
	c := Config{
		Client: kubernetes.NewForConfigOrDie(w.attacherConfig()), Driver: w.driver.name, Controller: w.controller(),
		Timeout: 15 * time.Second, RetryStart: 50 * time.Millisecond, RetryMax: time.Second,
		WorkerThreads: 10, DrainTimeout: 5 * time.Second,
	}
	for _, f := range change {
		f(&c)
	}
	a, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	warm, cold := context.WithCancel(context.Background())
	a.Warm(warm)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				w.t.Errorf("Run: %v", err)
			}
			cold()
		})
	}
	w.t.Cleanup(w.stop)
}

// attacherConfig is the configuration of the attacher's client. Each of its patches
// has to carry a UID (S6).
func (w *world) attacherConfig() *rest.Config {
	config := rest.CopyConfig(w.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				var patch struct{ Metadata struct{ UID string } }
				if err := json.Unmarshal(body, &patch); err != nil || patch.Metadata.UID == "" {
					w.t.Errorf("S6: the patch of %s carries no UID: %s (%v)", r.URL.Path, body, err)
				}
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// controller connects to the driver.
func (w *world) controller() *csi.Controller {
	w.t.Helper()
	conn, err := connection.Connect(w.t.Context(), w.driver.address, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	controller, err := csi.NewController(w.t.Context(), conn)
	if err != nil {
		w.t.Fatal(err)
	}
	return controller
}

func (w *world) name(s string) string { return w.prefix + "-" + s }

// node makes a CSINode whose node ID is "id-" and its name.
func (w *world) node(name string) {
	w.t.Helper()
	w.nodeWithID(name, "id-"+name)
}

func (w *world) nodeWithID(name, id string) {
	w.t.Helper()
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: w.name(name)}}
	if id != "" {
		node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: w.driver.name, NodeID: id}}
	}
	if _, err := w.client.StorageV1().CSINodes().Create(w.t.Context(), node, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) deleteNode(name string) {
	w.t.Helper()
	if err := w.client.StorageV1().CSINodes().Delete(w.t.Context(), w.name(name), metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func csiPV(w *world, name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.name(name)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: w.driver.name, VolumeHandle: w.name(name),
			}},
		},
	}
}

// volume makes a PersistentVolume whose handle is its name.
func (w *world) volume(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	w.t.Helper()
	pv := csiPV(w, name)
	for _, f := range change {
		f(pv)
	}
	stored, err := w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), pv, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return stored
}

func withSecret(w *world, name string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Name: w.name(name), Namespace: "default"}
	}
}

// handle is the volume that a PersistentVolume of this name has now; its name where there is none.
func (w *world) handle(name string) string {
	w.t.Helper()
	pv, err := w.client.CoreV1().PersistentVolumes().Get(w.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return name
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if in := csitrans.New(); in.IsPVMigratable(pv) {
		if translated, err := in.TranslateInTreePVToCSI(klog.Background(), pv); err == nil {
			pv = translated
		}
	}
	if pv.Spec.CSI == nil {
		return name
	}
	return pv.Spec.CSI.VolumeHandle
}

// attachment makes a VolumeAttachment of a volume for a node.
func (w *world) attachment(volume, node string, change ...func(*storagev1.VolumeAttachment)) string {
	w.t.Helper()
	pv := w.name(volume)
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(w.handle(pv), w.driver.name, w.name(node))},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.driver.name, NodeName: w.name(node), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	for _, f := range change {
		f(va)
	}
	status := va.Status
	stored, err := w.client.StorageV1().VolumeAttachments().Create(w.t.Context(), va, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if status.Attached {
		stored.Status = status
		if _, err := w.client.StorageV1().VolumeAttachments().UpdateStatus(w.t.Context(), stored, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	return stored.Name
}

func (w *world) get(name string) *storagev1.VolumeAttachment {
	w.t.Helper()
	va, err := w.client.StorageV1().VolumeAttachments().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return va
}

func (w *world) delete(name string) {
	w.t.Helper()
	if err := w.client.StorageV1().VolumeAttachments().Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) patchPV(name, patch string) {
	w.t.Helper()
	if _, err := w.client.CoreV1().PersistentVolumes().Patch(w.t.Context(), w.name(name), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// until waits for a VolumeAttachment to be as wanted; nil means that it is gone.
func (w *world) until(name, what string, is func(va *storagev1.VolumeAttachment) bool) *storagev1.VolumeAttachment {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	all, err := w.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		w.t.Fatal(err)
	}
	var seen *storagev1.VolumeAttachment
	if len(all.Items) > 0 {
		seen = &all.Items[0]
	}
	if is(seen) {
		return seen
	}
	watch, err := w.client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), ResourceVersion: all.ResourceVersion})
	if err != nil {
		w.t.Fatal(err)
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		va, ok := event.Object.(*storagev1.VolumeAttachment)
		if !ok {
			w.t.Fatalf("watch: %v", event.Object)
		}
		seen = va
		if event.Type == "DELETED" {
			seen = nil
		}
		if is(seen) {
			return seen
		}
	}
	w.t.Fatalf("VolumeAttachment %s is not %s: %+v; calls %v", name, what, seen, w.driver.received())
	return nil
}

func isAttached(va *storagev1.VolumeAttachment) bool { return va != nil && va.Status.Attached }
func isGone(va *storagev1.VolumeAttachment) bool     { return va == nil }
func hasAttachError(text string) func(*storagev1.VolumeAttachment) bool {
	return func(va *storagev1.VolumeAttachment) bool {
		return va != nil && va.Status.AttachError != nil && strings.Contains(va.Status.AttachError.Message, text)
	}
}
func hasDetachError(text string) func(*storagev1.VolumeAttachment) bool {
	return func(va *storagev1.VolumeAttachment) bool {
		return va != nil && va.Status.DetachError != nil && strings.Contains(va.Status.DetachError.Message, text)
	}
}

// untilPV waits for a PersistentVolume to have our finalizer, or not.
func (w *world) untilPV(name string, protected bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	watch, err := w.client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", w.name(name)).String()})
	if err != nil {
		w.t.Fatal(err)
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		pv, ok := event.Object.(*corev1.PersistentVolume)
		if ok && strings.Contains(strings.Join(pv.Finalizers, " "), kube.AttacherFinalizer(w.driver.name)) == protected {
			return
		}
	}
	w.t.Fatalf("PersistentVolume %s: our finalizer on it is not %v", name, protected)
}

// list reads this driver's attachments.
func (w *world) list() []storagev1.VolumeAttachment {
	w.t.Helper()
	all, err := w.client.StorageV1().VolumeAttachments().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(va storagev1.VolumeAttachment) bool { return va.Spec.Attacher != w.driver.name })
}
