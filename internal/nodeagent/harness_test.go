package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"belay.dev/belay/internal/kube"
)

// server is one real API server for all tests of the package; each test has a
// node, a driver and a namespace of its own.
var server struct {
	once   sync.Once
	env    *envtest.Environment
	config *rest.Config
	err    error
}

func TestMain(m *testing.M) {
	if arguments := os.Getenv(childEnv); arguments != "" {
		runChild(arguments)
	}
	code := m.Run()
	if server.env != nil {
		if err := server.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
		}
	}
	os.Exit(code)
}

func apiServer(t testing.TB) *rest.Config {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs a real API server: set KUBEBUILDER_ASSETS to a folder with kube-apiserver and etcd")
	}
	server.once.Do(func() {
		server.env = &envtest.Environment{}
		// The rights of a node are those of a real cluster.
		server.env.ControlPlane.GetAPIServer().Configure().
			Set("authorization-mode", "Node,RBAC").
			Set("enable-admission-plugins", "NodeRestriction").
			Set("disable-admission-plugins", "ServiceAccount")
		server.config, server.err = server.env.Start()
	})
	if server.err != nil {
		t.Fatalf("start the API server: %v", server.err)
	}
	config := rest.CopyConfig(server.config)
	config.QPS, config.Burst = -1, 0
	return config
}

// world is one node with one driver, and the rest of the cluster played by the test.
type world struct {
	testing.TB
	ctx    context.Context
	admin  kubernetes.Interface
	nodeID *rest.Config // the node's own credential
	name   string       // node, namespace and driver carry it
	root   string
	driver *scriptedDriver
	bootID string
}

func newWorld(t testing.TB, options ...func(*storagev1.CSIDriver)) *world {
	t.Helper()
	config := apiServer(t)
	admin, err := kubernetes.NewForConfig(config)
	must(t, err)
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", ",", "", ":", "").Replace(t.Name()))
	name = hash(name)[:10]
	user, err := server.env.AddUser(envtest.User{Name: "system:node:" + name, Groups: []string{"system:nodes"}}, config)
	must(t, err)
	root, err := os.MkdirTemp("", "bn") // short: sockets lie below it
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	w := &world{TB: t, ctx: ctx, admin: admin, nodeID: user.Config(), name: name, root: root, bootID: "boot-1"}
	_, err = admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	if len(options) > 0 {
		object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driverName()}}
		for _, change := range options {
			change(object)
		}
		_, err = admin.StorageV1().CSIDrivers().Create(ctx, object, metav1.CreateOptions{})
		must(t, err)
	}
	w.driver = newScriptedDriver(w)
	return w
}

func (w *world) driverName() string { return w.name + ".test.belay.dev" }

// agent starts an agent on the world's root; stop kills it.
func (w *world) agent() (agent *Agent, stop func()) {
	w.Helper()
	agent, err := New(Config{
		NodeName: w.name, Root: w.root, RESTConfig: w.nodeID, BootID: w.bootID,
		MountPoints: w.driver.mountPoints, Logger: testLogger(w.TB),
	})
	must(w, err)
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.Errorf("agent: %v", err)
			}
		})
	}
	w.Cleanup(stop)
	return agent, stop
}

func testLogger(t testing.TB) logr.Logger {
	if real, ok := t.(*testing.T); ok && testing.Verbose() {
		return testr.NewWithOptions(real, testr.Options{LogTimestamp: true, Verbosity: 1})
	}
	return logr.Discard()
}

// volumeOptions make a volume other than a plain RWO file system.
type volumeOptions func(*corev1.PersistentVolume)

// volume creates a bound claim and its volume, named alike; the handle is "h-" and the name.
func (w *world) volume(name string, options ...volumeOptions) string {
	w.Helper()
	full := w.name + "-" + name
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: full},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: w.driverName(), VolumeHandle: "h-" + full, FSType: "ext4", VolumeAttributes: map[string]string{"pool": "fast"},
			}},
		},
	}
	handle := pv.Spec.CSI.VolumeHandle
	for _, change := range options {
		change(pv)
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: pv.Spec.AccessModes, VolumeMode: pv.Spec.VolumeMode, VolumeName: full,
			Resources: corev1.VolumeResourceRequirements{Requests: pv.Spec.Capacity},
		},
	}
	claim, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Create(w.ctx, claim, metav1.CreateOptions{})
	must(w, err)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.name, Name: name, UID: claim.UID}
	_, err = w.admin.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	must(w, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = w.admin.CoreV1().PersistentVolumeClaims(w.name).UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
	must(w, err)
	return handle
}

// pod creates a pod on the node that mounts the claims.
func (w *world) pod(name string, claims ...string) *corev1.Pod {
	w.Helper()
	return w.podWith(name, nil, claims...)
}

func (w *world) podWith(name string, change func(*corev1.Pod), claims ...string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.name},
		Spec:       corev1.PodSpec{NodeName: w.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: claim, MountPath: "/" + claim})
	}
	if change != nil {
		change(pod)
	}
	pod, err := w.admin.CoreV1().Pods(w.name).Create(w.ctx, pod, metav1.CreateOptions{})
	must(w, err)
	return pod
}

func (w *world) node() *corev1.Node {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(w, err)
	return node
}

// untilNode waits for a version of the Node of which is holds.
func (w *world) untilNode(what string, is func(*corev1.Node) bool) *corev1.Node {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	nodes := w.admin.CoreV1().Nodes()
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, w.name).String()
	event, err := watchtools.UntilWithSync(ctx, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return nodes.Watch(ctx, o)
		},
	}, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		return ok && is(node), nil
	})
	if err != nil {
		w.Fatalf("wait until %s: %v; the node is %+v", what, err, w.node().Status)
	}
	return event.Object.(*corev1.Node)
}

func (w *world) unique(handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(kube.UniqueVolumeName(w.driverName(), handle))
}

func (w *world) untilInUse(handle string) {
	w.Helper()
	w.untilNode("volume "+handle+" is in use", func(n *corev1.Node) bool {
		return slices.Contains(n.Status.VolumesInUse, w.unique(handle))
	})
}

func (w *world) untilNotInUse(handle string) {
	w.Helper()
	w.untilNode("volume "+handle+" is not in use", func(n *corev1.Node) bool {
		return !slices.Contains(n.Status.VolumesInUse, w.unique(handle))
	})
}

// attach plays controller and attacher.
func (w *world) attach(handle string) {
	w.Helper()
	must(w, w.tryAttach(handle))
}

func (w *world) tryAttach(handle string) error {
	api := w.admin.StorageV1().VolumeAttachments()
	va, err := api.Create(w.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(handle, w.driverName(), w.name)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.driverName(), NodeName: w.name,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(strings.TrimPrefix(handle, "h-"))},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/" + handle}}
	if _, err = api.UpdateStatus(w.ctx, va, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return w.report(handle, true)
}

// report changes node.status.volumesAttached as the controller does.
func (w *world) report(handle string, attached bool) error {
	for {
		node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		list := slices.DeleteFunc(slices.Clone(node.Status.VolumesAttached), func(v corev1.AttachedVolume) bool { return v.Name == w.unique(handle) })
		if attached {
			list = append(list, corev1.AttachedVolume{Name: w.unique(handle)})
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "status": map[string]any{"volumesAttached": list},
		})
		if err != nil {
			return err
		}
		after, err := w.admin.CoreV1().Nodes().Patch(w.ctx, w.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsConflict(err):
			continue
		case err != nil:
			return err
		case !attached && slices.Contains(after.Status.VolumesInUse, w.unique(handle)):
			return errStillInUse
		}
		return nil
	}
}

var errStillInUse = fmt.Errorf("the volume is in use after all")

// detach withdraws the report and deletes the attachment if the Node does not list the volume in use.
func (w *world) detach(handle string) error {
	if err := w.report(handle, false); err != nil {
		return err
	}
	return w.admin.StorageV1().VolumeAttachments().Delete(w.ctx, kube.AttachmentName(handle, w.driverName(), w.name), metav1.DeleteOptions{})
}

// mounted waits for a pod's volumes.
func (w *world) mounted(agent *Agent, pod *corev1.Pod) []Mount {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	mounts, err := agent.WaitMounted(ctx, pod.UID)
	if err != nil {
		w.Fatalf("pod %s: %v", pod.Name, err)
	}
	return mounts
}

func (w *world) unmounted(agent *Agent, pod *corev1.Pod) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	if err := agent.WaitUnmounted(ctx, pod.UID); err != nil {
		w.Fatalf("pod %s: %v", pod.Name, err)
	}
}

// leftovers are the files below the root that no empty node has.
func (w *world) leftovers() []string {
	w.Helper()
	var left []string
	must(w, filepath.WalkDir(w.root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(w.root, path)
		switch name {
		case ".", "belay", lockFile, "belay/volumes", "plugins", "plugins/kubernetes.io", "plugins/kubernetes.io/csi", "pods", registryDir,
			"plugins/kubernetes.io/csi/" + w.driverName(), "plugins/kubernetes.io/csi/volumeDevices",
			"plugins/kubernetes.io/csi/volumeDevices/staging", "plugins/kubernetes.io/csi/volumeDevices/publish":
			return nil
		}
		if entry.Type()&os.ModeSocket == 0 {
			left = append(left, name)
		}
		return nil
	}))
	return left
}

// scriptedDriver is a CSI driver on a unix socket that does what a test says. Its
// mounts are entries in a table.
type scriptedDriver struct {
	csispec.UnimplementedIdentityServer
	csispec.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	w      *world
	name   string
	server *grpc.Server

	mu sync.Mutex
	// Under mu:
	calls    []string
	requests []any
	mounts   map[string]string // path -> volume
	staged   map[string]string // volume -> path
	attempts map[string]int
	// hook runs before each call and may fail it.
	hook func(method, volume string, attempt int) error
	// after runs when a call has done its work and may lose the reply.
	after  func(method, volume string, attempt int) error
	caps   []csispec.NodeServiceCapability_RPC_Type
	info   *csispec.NodeGetInfoResponse
	plugin *registration.PluginInfo
	status chan *registration.RegistrationStatus
}

func newScriptedDriver(w *world) *scriptedDriver {
	d := &scriptedDriver{
		w: w, name: w.driverName(), mounts: map[string]string{}, staged: map[string]string{}, attempts: map[string]int{},
		caps: []csispec.NodeServiceCapability_RPC_Type{csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		info: &csispec.NodeGetInfoResponse{
			NodeId: "id-of-" + w.name, MaxVolumesPerNode: 7,
			AccessibleTopology: &csispec.Topology{Segments: map[string]string{"topology.test.belay.dev/rack": "r1"}},
		},
		status: make(chan *registration.RegistrationStatus, 100),
	}
	d.plugin = &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, SupportedVersions: []string{"1.0.0"}}
	d.start()
	w.Cleanup(func() { d.stop() })
	return d
}

func (d *scriptedDriver) socket() string {
	return filepath.Join(d.w.root, registryDir, d.w.name+"-reg.sock")
}

// start serves registration and Node service on one socket, as a plugin without an endpoint does.
func (d *scriptedDriver) start() {
	d.w.Helper()
	must(d.w, os.MkdirAll(filepath.Dir(d.socket()), 0o750))
	listener, err := net.Listen("unix", d.socket())
	must(d.w, err)
	d.server = grpc.NewServer()
	csispec.RegisterIdentityServer(d.server, d)
	csispec.RegisterNodeServer(d.server, d)
	registration.RegisterRegistrationServer(d.server, d)
	go d.server.Serve(listener) //nolint:errcheck // ends with stop
}

// stop closes the socket, which removes its file.
func (d *scriptedDriver) stop() { d.server.Stop() }

func (d *scriptedDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plugin, nil
}

func (d *scriptedDriver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.status <- s
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *scriptedDriver) NodeGetInfo(context.Context, *csispec.NodeGetInfoRequest) (*csispec.NodeGetInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info, nil
}

func (d *scriptedDriver) NodeGetCapabilities(context.Context, *csispec.NodeGetCapabilitiesRequest) (*csispec.NodeGetCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := &csispec.NodeGetCapabilitiesResponse{}
	for _, c := range d.caps {
		reply.Capabilities = append(reply.Capabilities, &csispec.NodeServiceCapability{
			Type: &csispec.NodeServiceCapability_Rpc{Rpc: &csispec.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return reply, nil
}

// begin records a call and runs the hook outside the lock.
func (d *scriptedDriver) begin(method, volume string, request any) (int, error) {
	d.mu.Lock()
	d.calls = append(d.calls, method+" "+strings.TrimPrefix(volume, "h-"+d.w.name+"-"))
	d.requests = append(d.requests, request)
	d.attempts[method+volume]++
	attempt, hook := d.attempts[method+volume], d.hook
	d.mu.Unlock()
	if hook == nil {
		return attempt, nil
	}
	return attempt, hook(method, volume, attempt)
}

func (d *scriptedDriver) end(method, volume string, attempt int) error {
	d.mu.Lock()
	after := d.after
	d.mu.Unlock()
	if after == nil {
		return nil
	}
	return after(method, volume, attempt)
}

func (d *scriptedDriver) NodeStageVolume(_ context.Context, r *csispec.NodeStageVolumeRequest) (*csispec.NodeStageVolumeResponse, error) {
	attempt, err := d.begin("Stage", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	if r.GetVolumeCapability().GetBlock() == nil {
		if info, err := os.Stat(r.StagingTargetPath); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("staging path is no directory: %v", err)
		}
	}
	d.mu.Lock()
	d.staged[r.VolumeId] = r.StagingTargetPath
	d.mounts[r.StagingTargetPath] = r.VolumeId
	d.mu.Unlock()
	return &csispec.NodeStageVolumeResponse{}, d.end("Stage", r.VolumeId, attempt)
}

func (d *scriptedDriver) NodePublishVolume(_ context.Context, r *csispec.NodePublishVolumeRequest) (*csispec.NodePublishVolumeResponse, error) {
	attempt, err := d.begin("Publish", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		err = os.WriteFile(r.TargetPath, nil, 0o600)
	} else if err = os.Mkdir(r.TargetPath, 0o750); os.IsExist(err) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("make the target: %w", err)
	}
	d.mu.Lock()
	d.mounts[r.TargetPath] = r.VolumeId
	d.mu.Unlock()
	return &csispec.NodePublishVolumeResponse{}, d.end("Publish", r.VolumeId, attempt)
}

func (d *scriptedDriver) NodeUnpublishVolume(_ context.Context, r *csispec.NodeUnpublishVolumeRequest) (*csispec.NodeUnpublishVolumeResponse, error) {
	attempt, err := d.begin("Unpublish", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	delete(d.mounts, r.TargetPath)
	d.mu.Unlock()
	if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return &csispec.NodeUnpublishVolumeResponse{}, d.end("Unpublish", r.VolumeId, attempt)
}

func (d *scriptedDriver) NodeUnstageVolume(_ context.Context, r *csispec.NodeUnstageVolumeRequest) (*csispec.NodeUnstageVolumeResponse, error) {
	attempt, err := d.begin("Unstage", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	delete(d.mounts, r.StagingTargetPath)
	delete(d.staged, r.VolumeId)
	d.mu.Unlock()
	return &csispec.NodeUnstageVolumeResponse{}, d.end("Unstage", r.VolumeId, attempt)
}

func (d *scriptedDriver) mountPoints() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	points := make([]string, 0, len(d.mounts))
	for path := range d.mounts {
		points = append(points, path)
	}
	return points, nil
}

// made are the calls so far.
func (d *scriptedDriver) made() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// lastRequest is the last request of a kind.
func lastRequest[R any](d *scriptedDriver) R {
	d.w.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, request := range slices.Backward(d.requests) {
		if r, ok := request.(R); ok {
			return r
		}
	}
	d.w.Fatal("the driver was not called so")
	panic("unreachable")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) wantCSINode(node *corev1.Node) {
	w.Helper()
	got, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(w, err)
	want := []storagev1.CSINodeDriver{{
		Name: w.driverName(), NodeID: "id-of-" + w.name, TopologyKeys: []string{"topology.test.belay.dev/rack"},
		Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(7))},
	}}
	if diff := cmp.Diff(want, got.Spec.Drivers); diff != "" {
		w.Errorf("CSINode (-want +got):\n%s", diff)
	}
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.name, UID: node.UID}}
	if diff := cmp.Diff(owner, got.OwnerReferences); diff != "" {
		w.Errorf("owner of the CSINode (-want +got):\n%s", diff)
	}
}
