package attacher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	storagev1client "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
)

// bubble is a whole attacher in fake time (testing/synctest). The API server is a few maps, the driver a function.
type bubble struct {
	t           *testing.T
	attachments *memory[*storagev1.VolumeAttachment]
	volumes     *memory[*corev1.PersistentVolume]
	csiNodes    *memory[*storagev1.CSINode]
	attacher    *Attacher

	mu       sync.Mutex
	answer   func(context.Context, call) error
	calls    []call
	inFlight int
	most     int // calls in flight at once, ever
}

const bubbleDriver = "bubble.csi.test"

// inBubble runs a test against an attacher in fake time, with the timeouts of the flags' defaults.
func inBubble(t *testing.T, workerThreads int, test func(b *bubble)) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///bubble", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(serveInBubble))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	controller, err := csi.NewController(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{
			t: t, answer: func(context.Context, call) error { return nil },
			attachments: newMemory(func() *storagev1.VolumeAttachment { return &storagev1.VolumeAttachment{} }),
			volumes:     newMemory(func() *corev1.PersistentVolume { return &corev1.PersistentVolume{} }),
			csiNodes:    newMemory(func() *storagev1.CSINode { return &storagev1.CSINode{} }),
		}
		b.attacher, err = New(Config{
			Client: bubbleClient{b: b}, Driver: bubbleDriver, Controller: controller,
			Timeout: 15 * time.Second, RetryStart: time.Second, RetryMax: 5 * time.Minute,
			WorkerThreads: workerThreads, DrainTimeout: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		warm, cold := context.WithCancel(t.Context())
		b.attacher.Warm(warm)
		ctx, stop := context.WithCancel(klog.NewContext(context.WithValue(t.Context(), bubbleKey{}, b), logr.Discard()))
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.attacher.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		t.Cleanup(func() {
			stop()
			running.Wait()
			cold()
			b.attacher.objects.factory.Shutdown()
			time.Sleep(time.Minute) // what ends at its next tick
		})
		b.pass(time.Second) // it looks for its caches each 100 ms
		test(b)
	})
}

// volume makes a PersistentVolume whose name is also its handle.
func (b *bubble) volume(name string, modes ...corev1.PersistentVolumeAccessMode) {
	if modes == nil {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	b.volumes.put(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{AccessModes: modes, PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: bubbleDriver, VolumeHandle: name},
		}},
	})
}

func bubbleName(volume, node string) string { return kube.AttachmentName(volume, bubbleDriver, node) }

// attach makes a VolumeAttachment, and what it needs where that does not exist.
func (b *bubble) attach(volume, node string, change ...func(*storagev1.VolumeAttachment)) {
	if _, ok := b.volumes.get(volume); !ok {
		b.volume(volume)
	}
	if _, ok := b.csiNodes.get(node); !ok {
		b.csiNodes.put(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: bubbleDriver, NodeID: "id-" + node}},
		}})
	}
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: bubbleName(volume, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: bubbleDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}
	for _, f := range change {
		f(va)
	}
	b.attachments.put(va)
}

// attachedBefore makes a VolumeAttachment that an earlier process attached.
func (b *bubble) attachedBefore(volume, node string) {
	b.attach(volume, node, func(va *storagev1.VolumeAttachment) {
		va.Finalizers = []string{kube.AttacherFinalizer(bubbleDriver)}
		va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-" + node}
		va.Status.Attached = true
	})
}

func (b *bubble) detach(volume, node string) { b.attachments.delete(bubbleName(volume, node)) }

func (b *bubble) annotate(volume, node string, values map[string]any) {
	body, err := json.Marshal(object{"metadata": object{"annotations": values}})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.attachments.patch(bubbleName(volume, node), types.MergePatchType, body); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bubble) isAttached(volume, node string) bool {
	va, ok := b.attachments.get(bubbleName(volume, node))
	return ok && va.Status.Attached
}

func (b *bubble) isGone(volume, node string) bool {
	_, ok := b.attachments.get(bubbleName(volume, node))
	return !ok
}

// pass lets time pass, and everything happen that is due by then.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// within fails the test if something is not so at the end of that time.
func (b *bubble) within(d time.Duration, what string, is func() bool) {
	b.t.Helper()
	b.pass(d)
	if !is() {
		b.t.Errorf("%s: not after %v", what, d)
	}
}

// answers sets what the driver does from now on.
func (b *bubble) answers(f func(context.Context, call) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

// received lists the calls for a volume in words, all calls without one.
func (b *bubble) received(volume string) (words []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if volume == "" || c.Volume == volume {
			words = append(words, c.Method+" "+c.Node)
		}
	}
	return words
}

// atOnce is how many calls were in flight at once, at most.
func (b *bubble) atOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

// slow makes the API server take so long for each patch of a VolumeAttachment.
func (b *bubble) slow(d time.Duration) {
	b.attachments.mu.Lock()
	defer b.attachments.mu.Unlock()
	b.attachments.delay = d
}

// unanswered is a driver that does not answer.
func unanswered(ctx context.Context) error { return lasting(ctx, time.Hour) }

// lasting is a driver that takes so long for a call.
func lasting(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

type bubbleKey struct{}

func serveInBubble(ctx context.Context, _ string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
	b, _ := ctx.Value(bubbleKey{}).(*bubble)
	switch in := request.(type) {
	case *csispec.GetPluginCapabilitiesRequest:
		reply.(*csispec.GetPluginCapabilitiesResponse).Capabilities = []*csispec.PluginCapability{{
			Type: &csispec.PluginCapability_Service_{Service: &csispec.PluginCapability_Service{Type: csispec.PluginCapability_Service_CONTROLLER_SERVICE}},
		}}
		return nil
	case *csispec.ControllerGetCapabilitiesRequest:
		reply.(*csispec.ControllerGetCapabilitiesResponse).Capabilities = []*csispec.ControllerServiceCapability{{
			Type: &csispec.ControllerServiceCapability_Rpc{Rpc: &csispec.ControllerServiceCapability_RPC{
				Type: csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			}},
		}}
		return nil
	case *csispec.ControllerPublishVolumeRequest:
		return b.serve(ctx, call{Method: "Publish", Volume: in.GetVolumeId(), Node: in.GetNodeId(), At: time.Now()})
	case *csispec.ControllerUnpublishVolumeRequest:
		return b.serve(ctx, call{Method: "Unpublish", Volume: in.GetVolumeId(), Node: in.GetNodeId(), At: time.Now()})
	default:
		return status.Errorf(codes.Unimplemented, "%T", request)
	}
}

func (b *bubble) serve(ctx context.Context, c call) error {
	b.mu.Lock()
	b.calls = append(b.calls, c)
	b.inFlight++
	b.most = max(b.most, b.inFlight)
	answer := b.answer
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inFlight--
	}()
	return answer(ctx, c)
}

// memory is what the API server stores of one kind.
type memory[T client.Object] struct {
	empty func() T

	mu       sync.Mutex
	delay    time.Duration // of each patch
	version  int
	objects  map[string]T
	history  []watch.Event
	watchers []*memoryWatch
}

func newMemory[T client.Object](empty func() T) *memory[T] {
	return &memory[T]{empty: empty, objects: map[string]T{}, version: 1}
}

// get returns the stored object, which is never changed.
func (m *memory[T]) get(name string) (T, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.objects[name]
	return found, ok
}

// put creates an object or replaces it.
func (m *memory[T]) put(obj T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(obj)
}

func (m *memory[T]) store(obj T) {
	m.version++
	_, known := m.objects[obj.GetName()]
	if !known {
		obj.SetUID(types.UID("uid-" + obj.GetName() + "-" + strconv.Itoa(m.version)))
		obj.SetCreationTimestamp(metav1.Now())
	}
	obj.SetResourceVersion(strconv.Itoa(m.version))
	event := watch.Event{Type: watch.Added, Object: obj}
	switch {
	case obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0:
		event.Type = watch.Deleted
		delete(m.objects, obj.GetName())
	case known:
		event.Type = watch.Modified
		fallthrough
	default:
		m.objects[obj.GetName()] = obj
	}
	m.history = append(m.history, event)
	for _, w := range m.watchers {
		w.send(event)
	}
}

func (m *memory[T]) delete(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if stored, ok := m.objects[name]; ok && stored.GetDeletionTimestamp() == nil {
		deleted := stored.DeepCopyObject().(T)
		deleted.SetDeletionTimestamp(new(metav1.Now()))
		m.store(deleted)
	}
}

func (m *memory[T]) patch(name string, form types.PatchType, body []byte) (T, error) {
	m.mu.Lock()
	delay := m.delay
	m.mu.Unlock()
	time.Sleep(delay)
	m.mu.Lock()
	defer m.mu.Unlock()
	patched := m.empty()
	stored, ok := m.objects[name]
	if !ok {
		return patched, fmt.Errorf("%s not found", name)
	}
	before, err := json.Marshal(stored)
	if err != nil {
		return patched, err
	}
	var after []byte
	if form == types.StrategicMergePatchType {
		after, err = strategicpatch.StrategicMergePatch(before, body, m.empty())
	} else {
		after, err = mergePatch(before, body)
	}
	if err := cmp.Or(err, json.Unmarshal(after, patched)); err != nil {
		return patched, err
	}
	if patched.GetUID() != stored.GetUID() {
		return patched, fmt.Errorf("%s is another object", name)
	}
	m.store(patched)
	return patched.DeepCopyObject().(T), nil
}

// mergePatch applies a JSON merge patch (RFC 7396).
func mergePatch(before, body []byte) ([]byte, error) {
	var document, patch object
	if err := cmp.Or(json.Unmarshal(before, &document), json.Unmarshal(body, &patch)); err != nil {
		return nil, err
	}
	return json.Marshal(mergeObjects(document, patch))
}

func mergeObjects(document, patch object) object {
	if document == nil {
		document = object{}
	}
	for name, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(document, name)
		case object:
			of, _ := document[name].(object)
			document[name] = mergeObjects(of, value)
		default:
			document[name] = value
		}
	}
	return document
}

func (m *memory[T]) list(meta *metav1.ListMeta, add func(T)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	meta.ResourceVersion = strconv.Itoa(m.version)
	for _, obj := range m.objects {
		add(obj.DeepCopyObject().(T))
	}
}

func (m *memory[T]) watch(o metav1.ListOptions) (watch.Interface, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	w := &memoryWatch{events: make(chan watch.Event, 1<<16)}
	for _, event := range m.history {
		if version, _ := strconv.Atoi(event.Object.(client.Object).GetResourceVersion()); version > from {
			w.send(event)
		}
	}
	m.watchers = append(m.watchers, w)
	return w, nil
}

type memoryWatch struct{ events chan watch.Event }

func (w *memoryWatch) send(event watch.Event) {
	w.events <- watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}
}
func (w *memoryWatch) Stop()                          {}
func (w *memoryWatch) ResultChan() <-chan watch.Event { return w.events }

// bubbleClient is what the attacher uses of a client.
type bubbleClient struct {
	kubernetes.Interface

	b *bubble
}

// IsWatchListSemanticsUnSupported makes informers list before they watch.
func (c bubbleClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c bubbleClient) StorageV1() storagev1client.StorageV1Interface { return bubbleStorage{b: c.b} }
func (c bubbleClient) CoreV1() corev1client.CoreV1Interface          { return bubbleCore{b: c.b} }

type bubbleStorage struct {
	storagev1client.StorageV1Interface

	b *bubble
}

func (c bubbleStorage) VolumeAttachments() storagev1client.VolumeAttachmentInterface {
	return bubbleAttachments{m: c.b.attachments}
}
func (c bubbleStorage) CSINodes() storagev1client.CSINodeInterface {
	return bubbleCSINodes{m: c.b.csiNodes}
}

type bubbleAttachments struct {
	storagev1client.VolumeAttachmentInterface

	m *memory[*storagev1.VolumeAttachment]
}

func (c bubbleAttachments) List(context.Context, metav1.ListOptions) (*storagev1.VolumeAttachmentList, error) {
	out := &storagev1.VolumeAttachmentList{}
	c.m.list(&out.ListMeta, func(va *storagev1.VolumeAttachment) { out.Items = append(out.Items, *va) })
	return out, nil
}

func (c bubbleAttachments) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.m.watch(o)
}

func (c bubbleAttachments) Patch(_ context.Context, name string, form types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*storagev1.VolumeAttachment, error) {
	return c.m.patch(name, form, body)
}

type bubbleCSINodes struct {
	storagev1client.CSINodeInterface

	m *memory[*storagev1.CSINode]
}

func (c bubbleCSINodes) List(context.Context, metav1.ListOptions) (*storagev1.CSINodeList, error) {
	out := &storagev1.CSINodeList{}
	c.m.list(&out.ListMeta, func(node *storagev1.CSINode) { out.Items = append(out.Items, *node) })
	return out, nil
}

func (c bubbleCSINodes) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.m.watch(o)
}

type bubbleCore struct {
	corev1client.CoreV1Interface

	b *bubble
}

func (c bubbleCore) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return bubbleVolumes{m: c.b.volumes}
}

type bubbleVolumes struct {
	corev1client.PersistentVolumeInterface

	m *memory[*corev1.PersistentVolume]
}

func (c bubbleVolumes) List(context.Context, metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	out := &corev1.PersistentVolumeList{}
	c.m.list(&out.ListMeta, func(pv *corev1.PersistentVolume) { out.Items = append(out.Items, *pv) })
	return out, nil
}

func (c bubbleVolumes) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.m.watch(o)
}

func (c bubbleVolumes) Patch(_ context.Context, name string, form types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.PersistentVolume, error) {
	return c.m.patch(name, form, body)
}
