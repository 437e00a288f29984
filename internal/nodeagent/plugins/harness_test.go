package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// server is the API server of the package's tests; each has a node and a driver of its own.
var server apiserver.Server

var worlds atomic.Int64 // so far

func TestMain(m *testing.M) { os.Exit(server.Main(m)) }

// world is one node with one driver, without an agent.
type world struct {
	testing.TB
	ctx    context.Context
	admin  kubernetes.Interface
	nodeID *rest.Config // the node's own credential
	name   string       // node and driver carry it
	root   string
	driver *csidriver.Driver
}

func newWorld(tb testing.TB, options ...func(*storagev1.CSIDriver)) *world {
	tb.Helper()
	server.Start(tb)
	admin, err := kubernetes.NewForConfig(server.Config())
	must(tb, err)
	sum := sha256.Sum256(fmt.Append(nil, tb.Name(), worlds.Add(1))) // also with -count
	name := hex.EncodeToString(sum[:])[:10]
	ctx, cancel := context.WithTimeout(tb.Context(), 5*wait.Timeout)
	tb.Cleanup(cancel)
	w := &world{TB: tb, ctx: ctx, admin: admin, nodeID: server.Node(tb, name), name: name, root: csidriver.SocketDir(tb)}
	_, err = admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(tb, err)
	for _, change := range options {
		object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driverName()}}
		change(object)
		_, err = admin.StorageV1().CSIDrivers().Create(ctx, object, metav1.CreateOptions{})
		must(tb, err)
	}
	w.driver = w.startDriver(w.driverName())
	return w
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func (w *world) driverName() string { return w.name + ".test.belay.dev" }

// newDriver is a driver of the node that stages volumes. Like a plugin without an endpoint, it serves registration and CSI on
// one socket.
func (w *world) newDriver(name string) *csidriver.Driver {
	w.Helper()
	d := csidriver.New(w.TB, name)
	d.Address = filepath.Join(w.root, RegistryDir, name+"-reg.sock")
	d.NodeServices = []csispec.NodeServiceCapability_RPC_Type{csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	d.NodeInfo = &csispec.NodeGetInfoResponse{
		NodeId: "id-of-" + w.name, MaxVolumesPerNode: 7,
		AccessibleTopology: &csispec.Topology{Segments: map[string]string{"topology.test.belay.dev/rack": "r1"}},
	}
	return d
}

func (w *world) startDriver(name string) *csidriver.Driver {
	w.Helper()
	d := w.newDriver(name)
	d.Start()
	return d
}

// registrar is a driver of which only the registration is used, served like node-driver-registrar does: beside the
// driver, in its own process, with the driver's socket as the endpoint. The socket is below plugins_registry.
func (w *world) registrar(socket string, plugin *registration.PluginInfo) *csidriver.Driver {
	w.Helper()
	r := csidriver.New(w.TB, socket)
	r.Address, r.Plugin = filepath.Join(w.root, RegistryDir, socket), plugin
	r.Start()
	return r
}

// behind is a plugin whose driver is the world's, at its own socket outside the registry.
func (w *world) behind(version string) *registration.PluginInfo {
	w.Helper()
	endpoint := filepath.Join(w.root, "plugins", w.driverName(), "csi.sock")
	if _, err := os.Lstat(endpoint); err != nil {
		w.driver.Listen(endpoint)
	}
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: w.driverName(), Endpoint: endpoint, SupportedVersions: []string{version},
	}
}

// at is a registrar of the world's driver.
func (w *world) at(file, version string) *csidriver.Driver {
	w.Helper()
	return w.registrar(file, &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: w.driver.Name, Endpoint: w.driver.Address, SupportedVersions: []string{version},
	})
}

// limit is the number of volumes that the driver allows on the node.
func (w *world) limit(volumes int64) {
	w.driver.Lock()
	defer w.driver.Unlock()
	old := w.driver.NodeInfo
	w.driver.NodeInfo = &csispec.NodeGetInfoResponse{NodeId: old.NodeId, MaxVolumesPerNode: volumes, AccessibleTopology: old.AccessibleTopology}
}

// config is that of the node's Plugins, which reach the API server.
func (w *world) config() Config {
	w.Helper()
	client, err := kubernetes.NewForConfig(w.nodeID)
	must(w, err)
	return Config{NodeName: w.name, Client: client, Log: logr.Discard(), Verified: closed(), RPCTimeout: wait.Timeout}
}

// plugins serves the node until the end of the test or until stop is called.
func (w *world) plugins(options ...func(*Config)) (p *Plugins, stop func()) {
	w.Helper()
	config := w.config()
	root, err := mount.OpenRoot(w.root, nil)
	must(w, err)
	config.Root = root
	for _, change := range options {
		change(&config)
	}
	p = New(config, ignore)
	must(w, p.Open())
	ctx, cancel := context.WithCancel(w.ctx)
	var running sync.WaitGroup
	for _, serve := range []func(context.Context){p.Run, p.ServeAPI, observing(p)} {
		running.Go(func() { serve(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		p.Close()
		must(w, root.Close())
	})
	w.Cleanup(stop)
	return p, stop
}

// observing feeds Plugins with the versions of their Node, as nodestatus does in an agent.
func observing(p *Plugins) func(context.Context) {
	nodes := worker.NewInformer(p.config.Client.CoreV1().RESTClient(), "nodes",
		fields.OneTermEqualSelector(metav1.ObjectNameField, p.config.NodeName), &corev1.Node{})
	observe := func(object any) { p.ObserveNode(object.(*corev1.Node)) }
	_, _ = nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: observe, UpdateFunc: func(_, object any) { observe(object) }})
	return nodes.RunWithContext
}

// closed returns a closed channel.
func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (w *world) node() *corev1.Node {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(w, err)
	return node
}

// changeNode writes the Node, which the plugins write as well.
func (w *world) changeNode(change func(*corev1.Node)) {
	w.Helper()
	must(w, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node := w.node()
		change(node)
		_, err := w.admin.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
		return err
	}))
}

// untilNode waits until the Node is as wanted.
func (w *world) untilNode(what string, is func(*corev1.Node) bool) *corev1.Node {
	w.Helper()
	var node *corev1.Node
	wait.Until(w, what, func() bool { node = w.node(); return is(node) })
	return node
}

func (w *world) csiNode() *storagev1.CSINode {
	w.Helper()
	object, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(w, err)
	return object
}

// wantCSINode checks that the CSINode has the world's driver alone.
func (w *world) wantCSINode() {
	w.Helper()
	want := []storagev1.CSINodeDriver{limited(entry(w.driverName(), "id-of-"+w.name, "topology.test.belay.dev/rack"), 7)}
	if diff := cmp.Diff(want, w.knows().Drivers); diff != "" {
		w.Errorf("CSINode (-want +got):\n%s", diff)
	}
}

// known is what Node and CSINode say of drivers.
type known struct {
	IDs     map[string]string // the Node's annotation
	Labels  map[string]string
	Drivers []storagev1.CSINodeDriver
}

// knows is what Node and CSINode say now. The CSINode must be the Node's.
func (w *world) knows() known {
	w.Helper()
	node := w.node()
	k := known{Labels: node.Labels}
	if raw := node.Annotations[kube.CSINodeIDsAnnotation]; raw != "" {
		must(w, json.Unmarshal([]byte(raw), &k.IDs))
	}
	object := w.csiNode()
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.name, UID: node.UID}}
	if diff := cmp.Diff(owner, object.OwnerReferences); diff != "" {
		w.Errorf("owner of the CSINode (-want +got):\n%s", diff)
	}
	if got := object.Annotations[migratedPluginsAnnotation]; got != migratedPlugins {
		w.Errorf("migrated plugins are %q", got)
	}
	k.Drivers = object.Spec.Drivers
	return k
}

// ignore handles nothing.
var ignore = Handlers{
	Changed: func(string) {}, Reconnected: func(string) {}, CSIDriversListed: func() {}, CSIDriversUnknown: func(error) {},
	Measure: func(string) func(csi.Call) { return nil },
}

// onlyPlugins are plugins that reach a fake API.
func onlyPlugins(t *testing.T, on Handlers) *Plugins {
	t.Helper()
	root, err := mount.OpenRoot(csidriver.SocketDir(t), nil)
	must(t, err)
	p := New(Config{
		NodeName: "n", Root: root, Client: fakeNode(), Log: logr.Discard(), Verified: closed(), RPCTimeout: wait.Timeout, LimitPeriodUnit: time.Hour,
	}, on)
	t.Cleanup(func() {
		p.Close()
		must(t, root.Close())
	})
	return p
}

// fakeNode is an API that has node n.
func fakeNode() *fake.Clientset {
	return fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "1"}})
}

// identityOf is the identity of node n in a fake API.
func identityOf(client kubernetes.Interface) *identity {
	return newIdentity(Config{NodeName: "n", Client: client, Verified: closed()})
}
