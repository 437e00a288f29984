package attacher

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// server is the API server of the package's tests, which keep apart by the name of their driver. It records what service
// accounts ask for.
var server = apiserver.Server{Audit: `{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}`}

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	if os.Getenv(childVariable) != "" {
		os.Exit(runAsSidecar())
	}
	if user := os.Getenv(confinedVariable); user != "" {
		os.Exit(becomeConfined(user, os.Args[1:]))
	}
	csi.ShortTimeout = wait.Timeout
	status := server.Main(m)
	_ = os.RemoveAll(built.dir)
	os.Exit(status)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// call is a call that the driver received.
type call = csidriver.Call

var canAttach = []csispec.ControllerServiceCapability_RPC_Type{
	csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csispec.ControllerServiceCapability_RPC_PUBLISH_READONLY,
}

func startDriver(t *testing.T, capabilities ...csispec.ControllerServiceCapability_RPC_Type) *csidriver.Driver {
	t.Helper()
	d := csidriver.New(t, driverName(t))
	d.Address, d.ControllerServices = filepath.Join(csidriver.SocketDir(t), "csi.sock"), capabilities
	d.Start()
	return d
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

// world is one driver, its attacher, and a client to look at the API server.
type world struct {
	t      *testing.T
	driver *csidriver.Driver
	config *rest.Config
	client *kubernetes.Clientset
	prefix string

	logger logr.Logger // the attacher's; set it before start
	made   sync.Map    // the resource version of each VolumeAttachment as attachment made it, by name

	stop func() // ends the attacher and waits for it
}

// newWorld makes a driver and the objects around it; the attacher is not started.
func newWorld(t *testing.T, capabilities ...csispec.ControllerServiceCapability_RPC_Type) *world {
	t.Helper()
	server.Start(t)
	config := server.Config()
	client := kubernetes.NewForConfigOrDie(config)
	if capabilities == nil {
		capabilities = canAttach
	}
	w := &world{t: t, driver: startDriver(t, capabilities...), config: config, client: client, logger: klog.Background(), stop: func() {}}
	w.prefix = strings.TrimSuffix(w.driver.Name, ".csi.test")
	return w
}

// start runs an attacher; it is ended with the test.
func (w *world) start(change ...func(*Config)) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), w.logger))
	c := Config{
		Client: kubernetes.NewForConfigOrDie(w.attacherConfig()), Driver: w.driver.Name, Controller: w.controller(),
		Timeout: wait.Timeout, RetryStart: 50 * time.Millisecond, RetryMax: time.Second,
		WorkerThreads: 10, DrainTimeout: 5 * time.Second, AnnotateCalls: true,
	}
	for _, f := range change {
		f(&c)
	}
	a, err := New(c)
	must(w.t, err)
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
	conn, err := connection.Connect(w.t.Context(), w.driver.Address, nil)
	must(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	controller, err := csi.NewController(w.t.Context(), conn)
	must(w.t, err)
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
		node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: w.driver.Name, NodeID: id}}
	}
	if _, err := w.client.StorageV1().CSINodes().Create(w.t.Context(), node, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) deleteNode(name string) {
	w.t.Helper()
	must(w.t, w.client.StorageV1().CSINodes().Delete(w.t.Context(), w.name(name), metav1.DeleteOptions{}))
}

func csiPV(w *world, name string) *corev1.PersistentVolume {
	return fixture.PersistentVolume(w.name(name), w.driver.Name, w.name(name))
}

// volume makes a PersistentVolume whose handle is its name.
func (w *world) volume(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	w.t.Helper()
	pv := csiPV(w, name)
	for _, f := range change {
		f(pv)
	}
	stored, err := w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), pv, metav1.CreateOptions{})
	must(w.t, err)
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
	must(w.t, err)
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
	va := fixture.Attachment(kube.AttachmentName(w.handle(pv), w.driver.Name, w.name(node)), w.driver.Name, w.name(node), pv)
	for _, f := range change {
		f(va)
	}
	status := va.Status
	stored, err := w.client.StorageV1().VolumeAttachments().Create(w.t.Context(), va, metav1.CreateOptions{})
	must(w.t, err)
	if status.Attached {
		stored.Status = status
		stored, err = w.client.StorageV1().VolumeAttachments().UpdateStatus(w.t.Context(), stored, metav1.UpdateOptions{})
		must(w.t, err)
	}
	w.made.Store(stored.Name, stored.ResourceVersion)
	return stored.Name
}

func (w *world) get(name string) *storagev1.VolumeAttachment {
	w.t.Helper()
	va, err := w.client.StorageV1().VolumeAttachments().Get(w.t.Context(), name, metav1.GetOptions{})
	must(w.t, err)
	return va
}

// wantUnchanged checks that nothing was written to an attachment. The mark by which an attacher waits for its watch may be: the attacher of
// another test puts it on any of them. Only then do version and managed fields differ.
func (w *world) wantUnchanged(before *storagev1.VolumeAttachment) {
	w.t.Helper()
	after, before := w.get(before.Name), before.DeepCopy()
	if after.Annotations[kube.LeadingSinceAnnotation] != before.Annotations[kube.LeadingSinceAnnotation] {
		for _, va := range []*storagev1.VolumeAttachment{before, after} {
			delete(va.Annotations, kube.LeadingSinceAnnotation)
			va.ResourceVersion, va.ManagedFields = "", nil
		}
	}
	if diff := cmp.Diff(before, after, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("object changed (-before +after):\n%s", diff)
	}
}

func (w *world) delete(name string) {
	w.t.Helper()
	must(w.t, w.client.StorageV1().VolumeAttachments().Delete(w.t.Context(), name, metav1.DeleteOptions{}))
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
	all, err := w.client.StorageV1().VolumeAttachments().List(w.t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	must(w.t, err)
	var seen *storagev1.VolumeAttachment
	if len(all.Items) > 0 {
		seen = &all.Items[0]
	}
	if is(seen) {
		return seen
	}
	return w.follow(name, what, all.ResourceVersion, is)
}

// untilWas waits until a VolumeAttachment is, or at any time since attachment returned was, as wanted. A state that the next attempt ends is
// over before a busy machine looks for it. It fails at once where the attachment is gone without it.
func (w *world) untilWas(name, what string, was func(va *storagev1.VolumeAttachment) bool) *storagev1.VolumeAttachment {
	w.t.Helper()
	version, ok := w.made.Load(name)
	if !ok {
		w.t.Fatalf("VolumeAttachment %s was not made by attachment", name)
	}
	return w.follow(name, what, version.(string), func(va *storagev1.VolumeAttachment) bool {
		w.t.Helper()
		if va == nil {
			w.t.Fatalf("VolumeAttachment %s is gone and was never %s; calls %v", name, what, w.driver.Made())
		}
		return was(va)
	})
}

// untilRefused waits for an attachError. It fails at once where the volume is attached, or the attachment gone, without it.
func (w *world) untilRefused(name, text string) *storagev1.VolumeAttachment {
	w.t.Helper()
	return w.untilWas(name, "refused", func(va *storagev1.VolumeAttachment) bool {
		w.t.Helper()
		refused := hasAttachError(text)(va)
		if !refused && va.Status.Attached {
			w.t.Fatalf("VolumeAttachment %s was not refused: %+v; calls %v", name, va, w.driver.Made())
		}
		return refused
	})
}

// follow goes through the states of a VolumeAttachment after a version until one is as wanted.
func (w *world) follow(name, what, version string, is func(va *storagev1.VolumeAttachment) bool) (seen *storagev1.VolumeAttachment) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), wait.Timeout)
	defer cancel()
	watch, err := w.client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), ResourceVersion: version})
	must(w.t, err)
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
	w.t.Fatalf("VolumeAttachment %s is not %s: %+v; calls %v", name, what, seen, w.driver.Made())
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
	ctx, cancel := context.WithTimeout(w.t.Context(), wait.Timeout)
	defer cancel()
	watch, err := w.client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", w.name(name)).String()})
	must(w.t, err)
	defer watch.Stop()
	for event := range watch.ResultChan() {
		pv, ok := event.Object.(*corev1.PersistentVolume)
		if ok && strings.Contains(strings.Join(pv.Finalizers, " "), kube.AttacherFinalizer(w.driver.Name)) == protected {
			return
		}
	}
	w.t.Fatalf("PersistentVolume %s: our finalizer on it is not %v", name, protected)
}

// list reads this driver's attachments.
func (w *world) list() []storagev1.VolumeAttachment {
	w.t.Helper()
	all, err := w.client.StorageV1().VolumeAttachments().List(w.t.Context(), metav1.ListOptions{})
	must(w.t, err)
	return slices.DeleteFunc(all.Items, func(va storagev1.VolumeAttachment) bool { return va.Spec.Attacher != w.driver.Name })
}
