package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// server is the API server of the package's tests; each has a node, a driver and a namespace of its own.
var server apiserver.Server

var worlds atomic.Int64 // so far

func TestMain(m *testing.M) {
	if arguments := os.Getenv(childEnv); arguments != "" {
		runChild(arguments)
	}
	os.Exit(server.Main(m))
}

// world is one node with one driver, and the rest of the cluster played by the test.
type world struct {
	testing.TB
	ctx    context.Context
	admin  kubernetes.Interface
	nodeID *rest.Config // the node's own credential
	name   string       // node, namespace and driver carry it
	root   string
	driver *csidriver.Driver
	bootID string
}

func newWorld(tb testing.TB, options ...func(*storagev1.CSIDriver)) *world {
	tb.Helper()
	server.Start(tb)
	admin, err := kubernetes.NewForConfig(server.Config())
	must(tb, err)
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", ",", "", ":", "").Replace(tb.Name()))
	name = hash(fmt.Sprint(name, worlds.Add(1)))[:10] // also with -count
	ctx, cancel := context.WithTimeout(tb.Context(), 5*wait.Timeout)
	tb.Cleanup(cancel)
	w := &world{TB: tb, ctx: ctx, admin: admin, nodeID: server.Node(tb, name), name: name, root: csidriver.SocketDir(tb), bootID: "boot-1"}
	_, err = admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(tb, err)
	_, err = admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(tb, err)
	if len(options) > 0 {
		object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driverName()}}
		for _, change := range options {
			change(object)
		}
		_, err = admin.StorageV1().CSIDrivers().Create(ctx, object, metav1.CreateOptions{})
		must(tb, err)
	}
	w.driver = w.startDriver(w.driverName())
	return w
}

func (w *world) driverName() string { return w.name + ".test.belay.dev" }

// agent starts an agent on the world's root; stop kills it.
func (w *world) agent(options ...func(*Config)) (agent *Agent, stop func()) {
	w.Helper()
	config := Config{
		NodeName: w.name, Root: w.root, RESTConfig: w.nodeID, BootID: w.bootID,
		MountPoints: w.driver.MountPoints, Logger: testLogger(w.TB),
	}
	for _, change := range options {
		change(&config)
	}
	agent, err := New(config)
	must(w, err)
	return agent, w.run(agent)
}

// run runs an agent until the end of the test or until stop kills it.
func (w *world) run(agent *Agent) (stop func()) {
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
	return stop
}

func testLogger(tb testing.TB) logr.Logger {
	tb.Helper()
	if real, ok := tb.(*testing.T); ok && testing.Verbose() {
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
	pv := fixture.PersistentVolume(full, w.driverName(), "h-"+full)
	pv.Spec.CSI.FSType, pv.Spec.CSI.VolumeAttributes = "ext4", map[string]string{"pool": "fast"}
	handle := pv.Spec.CSI.VolumeHandle
	for _, change := range options {
		change(pv)
	}
	claim, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Create(w.ctx, fixture.Claim(w.name, name, pv), metav1.CreateOptions{})
	must(w, err)
	fixture.Bind(pv, claim)
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
	pod := fixture.Pod(w.name, name, w.name, claims...)
	if change != nil {
		change(pod)
	}
	pod, err := w.admin.CoreV1().Pods(w.name).Create(w.ctx, pod, metav1.CreateOptions{})
	must(w, err)
	claim := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
	if claim >= 0 && pod.Spec.NodeName != "" {
		must(w, w.untilReadable(pod.Spec.NodeName, authorizationv1.ResourceAttributes{
			Resource: "persistentvolumeclaims", Namespace: pod.Namespace, Name: pod.Spec.Volumes[claim].PersistentVolumeClaim.ClaimName,
		}))
	}
	return pod
}

// untilReadable waits until the API server lets the node read an object. The Node authorizer learns from informers of its own what
// refers to the object: right after that was created it may still refuse.
func (w *world) untilReadable(node string, object authorizationv1.ResourceAttributes) error {
	ctx, cancel := context.WithTimeout(w.ctx, wait.Timeout)
	defer cancel()
	object.Verb = "get"
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:node:" + node, Groups: []string{"system:nodes"}, ResourceAttributes: &object,
	}}
	for {
		answer, err := w.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("wait until node %s may read %s %s: %w", node, object.Resource, object.Name, err)
		case answer.Status.Allowed:
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *world) node() *corev1.Node {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(w, err)
	return node
}

// changeNode writes the Node, which the agent writes as well.
func (w *world) changeNode(change func(*corev1.Node)) {
	w.Helper()
	must(w, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node := w.node()
		change(node)
		_, err := w.admin.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
		return err
	}))
}

// following lists and watches the objects with a value in a field.
func following[L runtime.Object](api interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}, field, value string,
) *cache.ListWatch {
	only := fields.OneTermEqualSelector(field, value).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return api.Watch(ctx, o)
		},
	}
}

// untilNode waits for a version of the Node for which is returns true.
func (w *world) untilNode(what string, is func(*corev1.Node) bool) *corev1.Node {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, wait.Timeout)
	defer cancel()
	nodes := following(w.admin.CoreV1().Nodes(), metav1.ObjectNameField, w.name)
	event, err := watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
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
	return w.attachAs(handle, strings.TrimPrefix(handle, "h-"))
}

// attachAs is attach for a volume whose handle does not tell its name.
func (w *world) attachAs(handle, pv string) error {
	api := w.admin.StorageV1().VolumeAttachments()
	name := kube.AttachmentName(handle, w.driverName(), w.name)
	va, err := api.Create(w.ctx, fixture.Attachment(name, w.driverName(), w.name, pv), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/" + handle}}
	if _, err = api.UpdateStatus(w.ctx, va, metav1.UpdateOptions{}); err != nil {
		return err
	}
	attachment := authorizationv1.ResourceAttributes{Group: storagev1.GroupName, Resource: "volumeattachments", Name: name}
	if err := w.untilReadable(w.name, attachment); err != nil {
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

// bringUp sets a pod, attaches its volumes when they are in use, and waits until they are mounted.
func (w *world) bringUp(agent *Agent, pod *corev1.Pod, handles ...string) []Mount {
	w.Helper()
	agent.SetPod(pod)
	for _, handle := range handles {
		w.untilInUse(handle)
		w.attach(handle)
	}
	return w.mounted(agent, pod)
}

// life is what most tests begin with: an agent, and a pod with a volume of its own that is mounted.
type life struct {
	agent  *Agent
	stop   func() // kills the agent
	pod    *corev1.Pod
	handle string // of the volume "data"
}

func (w *world) live() life {
	w.Helper()
	l := life{handle: w.volume("data")}
	l.agent, l.stop = w.agent()
	l.pod = w.pod("p", "data")
	w.bringUp(l.agent, l.pod, l.handle)
	return l
}

// mounted waits for a pod's volumes.
func (w *world) mounted(agent *Agent, pod *corev1.Pod) []Mount {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, wait.Timeout)
	defer cancel()
	mounts, err := agent.WaitMounted(ctx, pod.UID)
	if err != nil {
		w.Fatalf("pod %s: %v", pod.Name, err)
	}
	return mounts
}

func (w *world) unmounted(agent *Agent, pod *corev1.Pod) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, wait.Timeout)
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
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an agent that still runs has removed it just now
		}
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(w.root, path)
		switch name {
		case ".", "belay", lockFile, ownerFile, podLocksDir, "belay/volumes", "plugins", "plugins/kubernetes.io", "plugins/kubernetes.io/csi", "pods", plugins.RegistryDir,
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

// untilNothingIsLeft waits for that: what has no attachment may still be unpublished when the Node lists nothing in use any more.
func (w *world) untilNothingIsLeft() {
	w.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			w.Logf("left behind: %v", left)
		}
	}()
	wait.Until(w, "nothing is left behind", func() bool {
		left = w.leftovers()
		return len(left) == 0
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func (w *world) csiNode() *storagev1.CSINode {
	w.Helper()
	object, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(w, err)
	return object
}

func (w *world) wantCSINode(node *corev1.Node) {
	w.Helper()
	got := w.csiNode()
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

// newDriver is a driver of the node that stages volumes. Like a plugin without an endpoint, it serves registration and CSI on
// one socket.
func (w *world) newDriver(name string) *csidriver.Driver {
	w.Helper()
	d := csidriver.New(w.TB, name)
	d.Address, d.HandlePrefix = filepath.Join(w.root, plugins.RegistryDir, name+"-reg.sock"), "h-"+w.name+"-"
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
