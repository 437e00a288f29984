package attacher

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/csi"
)

// memoryAPI is an API server in memory, for attachers in a bubble of fake time
// (testing/synctest). It has one count of versions, as etcd.
type memoryAPI struct {
	*fake.Clientset
	refuse func(action clienttesting.Action) error // may be nil

	mu      sync.Mutex
	version int
	objects map[string]map[string]client.Object // by resource and name
	watches map[string][]*watch.RaceFreeFakeWatcher
	limited []time.Time // when each request was sent, but for those of informers
	// stale, if set, is what the watch caches of the API server have of VolumeAttachments.
	stale   *storagev1.VolumeAttachmentList
	pending []watch.Event // that they have not come to
}

const resourceAttachments = "volumeattachments"

func newMemoryAPI() *memoryAPI {
	m := &memoryAPI{
		Clientset: &fake.Clientset{}, version: 100, objects: map[string]map[string]client.Object{},
		watches: map[string][]*watch.RaceFreeFakeWatcher{},
	}
	m.AddReactor("*", "*", m.react)
	m.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		w := watch.NewRaceFreeFake()
		resource := action.GetResource().Resource
		m.watches[resource] = append(m.watches[resource], w)
		return true, w, nil
	})
	return m
}

// put stores an object as it is; its watchers see it.
func (m *memoryAPI) put(resource string, o client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(resource, watch.Modified, o)
}

// change changes a VolumeAttachment.
func (m *memoryAPI) change(name string, with func(*storagev1.VolumeAttachment)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	va := m.objects[resourceAttachments][name].DeepCopyObject().(*storagev1.VolumeAttachment)
	with(va)
	m.store(resourceAttachments, watch.Modified, va)
}

// end ends an object, whatever its finalizers.
func (m *memoryAPI) end(resource, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(resource, watch.Deleted, m.objects[resource][name].DeepCopyObject().(client.Object))
}

func (m *memoryAPI) store(resource string, what watch.EventType, o client.Object) {
	m.version++
	o.SetResourceVersion(strconv.Itoa(m.version))
	if m.objects[resource] == nil {
		m.objects[resource] = map[string]client.Object{}
	}
	if m.objects[resource][o.GetName()] = o; what == watch.Deleted {
		delete(m.objects[resource], o.GetName())
	}
	event := watch.Event{Type: what, Object: o}
	if m.stale != nil && resource == resourceAttachments {
		m.pending = append(m.pending, event)
		return
	}
	m.deliver(resource, event)
}

func (m *memoryAPI) deliver(resource string, event watch.Event) {
	for _, w := range m.watches[resource] {
		w.Action(event.Type, event.Object.DeepCopyObject())
	}
}

// hold makes watches of VolumeAttachments, and lists that need not be new, show what is
// there now until proceed.
func (m *memoryAPI) hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stale = m.attachments(0)
}

// proceed shows one event after another: what is done about each is done before the next.
func (m *memoryAPI) proceed() {
	for {
		m.mu.Lock()
		if len(m.pending) == 0 {
			m.stale = nil
			m.mu.Unlock()
			return
		}
		m.deliver(resourceAttachments, m.pending[0])
		m.pending = m.pending[1:]
		m.mu.Unlock()
		synctest.Wait()
	}
}

func (m *memoryAPI) react(action clienttesting.Action) (bool, runtime.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resource := action.GetResource().Resource
	if list, ok := action.(clienttesting.ListActionImpl); !ok || list.GetListOptions().ResourceVersion != "0" {
		m.limited = append(m.limited, time.Now())
	}
	if m.refuse != nil {
		if err := m.refuse(action); err != nil {
			return true, nil, err
		}
	}
	switch a := action.(type) {
	case clienttesting.ListActionImpl:
		return true, m.list(resource, a.GetListOptions()), nil
	case clienttesting.PatchActionImpl:
		patched, err := m.patch(resource, a)
		return true, patched, err
	case clienttesting.GetActionImpl:
		if o, ok := m.objects[resource][a.GetName()]; ok {
			return true, o.DeepCopyObject(), nil
		}
		return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), a.GetName())
	}
	return false, nil, nil
}

// sent tells when each request was sent that is limited: not those of the informers.
func (m *memoryAPI) sent(since time.Time) (times []time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.limited {
		if !at.Before(since) {
			times = append(times, at)
		}
	}
	return times
}

func (m *memoryAPI) list(resource string, o metav1.ListOptions) runtime.Object {
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(m.version)}
	switch resource {
	case resourceAttachments:
		if o.ResourceVersion == "0" && m.stale != nil {
			return m.stale.DeepCopyObject()
		}
		return m.attachments(o.Limit)
	case "persistentvolumes":
		list := &corev1.PersistentVolumeList{ListMeta: meta}
		for _, pv := range m.objects[resource] {
			list.Items = append(list.Items, *pv.(*corev1.PersistentVolume).DeepCopy())
		}
		return list
	default:
		list := &storagev1.CSINodeList{ListMeta: meta}
		for _, node := range m.objects[resource] {
			list.Items = append(list.Items, *node.(*storagev1.CSINode).DeepCopy())
		}
		return list
	}
}

func (m *memoryAPI) attachments(limit int64) *storagev1.VolumeAttachmentList {
	list := &storagev1.VolumeAttachmentList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(m.version)}}
	of := m.objects[resourceAttachments]
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if list.Items = append(list.Items, *of[name].(*storagev1.VolumeAttachment).DeepCopy()); limit > 0 && len(list.Items) == int(limit) {
			break
		}
	}
	return list
}

func (m *memoryAPI) patch(resource string, a clienttesting.PatchActionImpl) (runtime.Object, error) {
	stored, ok := m.objects[resource][a.GetName()]
	if !ok {
		return nil, apierrors.NewNotFound(a.GetResource().GroupResource(), a.GetName())
	}
	patched := stored.DeepCopyObject().(client.Object)
	if err := apply(patched, a); err != nil {
		return nil, err
	}
	if patched.GetUID() != stored.GetUID() || patched.GetResourceVersion() != stored.GetResourceVersion() {
		return nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(), nil)
	}
	m.store(resource, watch.Modified, patched)
	return patched.DeepCopyObject(), nil
}

func apply(o client.Object, a clienttesting.PatchActionImpl) error {
	before, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if a.GetPatchType() == types.StrategicMergePatchType {
		after, err := strategicpatch.StrategicMergePatch(before, a.GetPatch(), o)
		if err != nil {
			return err
		}
		return json.Unmarshal(after, o)
	}
	var document, patch map[string]any
	if err := errors.Join(json.Unmarshal(before, &document), json.Unmarshal(a.GetPatch(), &patch)); err != nil {
		return err
	}
	mergeInto(document, patch)
	after, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return json.Unmarshal(after, o)
}

// mergeInto is RFC 7386. What is removed stays in the object that it is decoded into: no test looks.
func mergeInto(into, patch map[string]any) {
	for key, value := range patch {
		below, ok := value.(map[string]any)
		within, exists := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case ok && exists:
			mergeInto(within, below)
		default:
			into[key] = value
		}
	}
}

// memoryWorld is an attacher in fake time with its API server and its driver.
type memoryWorld struct {
	t      *testing.T
	api    *memoryAPI
	driver *scriptedDriver
	log    *logged
}

func newMemoryWorld(t *testing.T) *memoryWorld {
	t.Helper()
	b := &memoryWorld{t: t, api: newMemoryAPI(), driver: &scriptedDriver{
		name: "bubble.csi.test", capabilities: canAttach, busy: map[string][]context.Context{}, notify: make(chan struct{}),
		answer: func(context.Context, call, int) (map[string]string, error) { return nil, nil },
	}}
	b.api.put("csinodes", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "node1"}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: b.driver.name, NodeID: "id-node1"}}}})
	return b
}

// attachment makes a volume and its VolumeAttachment.
func (b *memoryWorld) attachment(volume string, change ...func(*storagev1.VolumeAttachment)) string {
	w := &world{t: b.t, driver: b.driver, prefix: "b"}
	pv := csiPV(w, volume)
	pv.UID = types.UID(pv.Name)
	b.api.put("persistentvolumes", pv)
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va-" + volume, UID: types.UID("va-" + volume)}}
	va.Spec = storagev1.VolumeAttachmentSpec{Attacher: b.driver.name, NodeName: "node1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}}
	for _, f := range change {
		f(va)
	}
	b.api.put(resourceAttachments, va)
	return va.Name
}

func (b *memoryWorld) isAttached(name string) bool {
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	va, ok := b.api.objects[resourceAttachments][name].(*storagev1.VolumeAttachment)
	return ok && va.Status.Attached
}

// start runs an attacher until the function that is returned is called.
func (b *memoryWorld) start(change ...func(*Config)) (stop func()) {
	b.t.Helper()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(b.driver.intercept))
	if err != nil {
		b.t.Fatal(err)
	}
	controller, err := csi.NewController(b.t.Context(), conn)
	if err != nil {
		b.t.Fatal(err)
	}
	c := Config{Client: b.api, Driver: b.driver.name, Controller: controller, Timeout: 15 * time.Second,
		RetryStart: time.Second, RetryMax: 5 * time.Minute, WorkerThreads: defaultWorkerThreads, DrainTimeout: time.Second}
	for _, f := range change {
		f(&c)
	}
	a, err := New(c)
	if err != nil {
		b.t.Fatal(err)
	}
	w := &world{t: b.t}
	b.log = w.logs()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), w.logger))
	a.Warm(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("Run: %v", err)
		}
		_ = conn.Close()
	}
}

// intercept answers calls that come without a socket.
func (d *scriptedDriver) intercept(ctx context.Context, _ string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
	var out proto.Message
	var err error
	switch in := request.(type) {
	case *csispec.GetPluginCapabilitiesRequest:
		out, err = d.GetPluginCapabilities(ctx, in)
	case *csispec.ControllerGetCapabilitiesRequest:
		out, err = d.ControllerGetCapabilities(ctx, in)
	case *csispec.ControllerPublishVolumeRequest:
		out, err = d.ControllerPublishVolume(ctx, in)
	case *csispec.ControllerUnpublishVolumeRequest:
		out, err = d.ControllerUnpublishVolume(ctx, in)
	}
	if err == nil {
		proto.Merge(reply.(proto.Message), out)
	}
	return err
}
