package attachdetach

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// model is a world without an API server: objects are put into the stores as a watch
// would, and the volumes that each of them wakes are returned.
type model struct {
	testing.TB
	*clusterState
	stores  map[string]*countingStore
	version int
	end     func([]key, *storagev1.VolumeAttachment) // gets the end of attachments; nil for none
}

func newModel(tb testing.TB) *model {
	tb.Helper()
	m := &model{TB: tb, stores: map[string]*countingStore{}}
	stores := map[string]toolscache.Indexer{}
	for _, kind := range kinds {
		m.stores[kind.name] = &countingStore{Indexer: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexersOf(kind.indexers))}
		stores[kind.name] = m.stores[kind.name]
	}
	m.clusterState = clusterStateOf(stores, ownClock{})
	return m
}

func indexersOf(i toolscache.Indexers) toolscache.Indexers {
	if i == nil {
		return toolscache.Indexers{}
	}
	return i
}

// countingStore counts the objects that are read from it.
type countingStore struct {
	toolscache.Indexer
	reads, lists atomic.Int64
}

func (s *countingStore) List() []any { s.lists.Add(1); return s.Indexer.List() }

func (s *countingStore) ByIndex(index, value string) ([]any, error) {
	items, err := s.Indexer.ByIndex(index, value)
	s.reads.Add(1 + int64(len(items)))
	return items, err
}

func (s *countingStore) GetByKey(k string) (any, bool, error) {
	s.reads.Add(1)
	return s.Indexer.GetByKey(k)
}

func (m *model) reads() (reads, lists int) {
	for _, s := range m.stores {
		reads, lists = reads+int(s.reads.Load()), lists+int(s.lists.Load())
	}
	return reads, lists
}

// put adds or changes an object and returns the volumes that are woken.
func (m *model) put(obj client.Object) []key {
	m.Helper()
	m.version++
	obj = obj.DeepCopyObject().(client.Object)
	obj.SetResourceVersion(strconv.Itoa(m.version))
	if obj.GetUID() == "" {
		obj.SetUID(types.UID(fmt.Sprintf("uid-%T-%s-%s", obj, obj.GetNamespace(), obj.GetName())))
	}
	return m.event(obj, false)
}

// remove deletes an object.
func (m *model) remove(obj client.Object) []key { m.Helper(); m.version++; return m.event(obj, true) }

func (m *model) event(obj client.Object, gone bool) []key {
	m.Helper()
	switch o := obj.(type) {
	case *corev1.Pod:
		return occur(m, "Pod", kube.StripPod(o), gone, m.podChanged)
	case *corev1.Node:
		return occur(m, "Node", kube.StripNode(o), gone, m.nodeChanged)
	case *corev1.PersistentVolumeClaim:
		return occur(m, "PersistentVolumeClaim", o, gone, m.claimChanged)
	case *corev1.PersistentVolume:
		return occur(m, "PersistentVolume", kube.StripVolume(o), gone, m.volumeChanged)
	case *storagev1.VolumeAttachment:
		return occur(m, "VolumeAttachment", kube.StripAttachment(o), gone, m.attachmentChanged)
	case *storagev1.CSIDriver:
		return occur(m, "CSIDriver", o, gone, m.driverChanged)
	case *storagev1.CSINode:
		return occur(m, "CSINode", kube.StripCSINode(o), gone, m.csiNodeChanged)
	}
	m.Fatalf("no watch of a %T", obj)
	return nil
}

func occur[T client.Object](m *model, kind string, obj T, gone bool, changed func(before, after T) []key) []key {
	m.Helper()
	store, none := m.stores[kind].Indexer, *new(T)
	before := none
	name, err := toolscache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		m.Fatal(err)
	}
	if old, ok, _ := store.GetByKey(name); ok {
		before = old.(T)
	} else if gone {
		return nil // never came
	}
	if gone {
		err = store.Delete(obj)
		obj = none
	} else {
		err = store.Update(obj)
	}
	if err != nil {
		m.Fatal(err)
	}
	return distinct(changed(before, obj))
}

// decide is what would be done for the volume now.
func (m *model) decide(k key) attachment.Decision {
	s := m.observe(k, &nodeReads{}, noDoubts{})
	return attachment.Decide(modelTime, s.want, s.seen, attachment.Policy{OutOfService: true})
}

// modelTime is when all decisions of a model are made.
var modelTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// attachmentChanged is what the sources call when no delete is in flight.
func (m *model) attachmentChanged(before, after *storagev1.VolumeAttachment) []key {
	return m.clusterState.attachmentChanged(before, after, noDoubts{end: m.end})
}

// noDoubts is a controller that has no request in flight.
type noDoubts struct {
	end func([]key, *storagev1.VolumeAttachment) // nil for none
}

func (noDoubts) deleteMayBeUnderway(*storagev1.VolumeAttachment) bool { return false }
func (noDoubts) writeMayBeUnderway(*corev1.Node) bool                 { return false }
func (noDoubts) pending(key) []attachment.Pending                     { return nil }

func (d noDoubts) attachmentDeleted(keys []key, va *storagev1.VolumeAttachment) {
	if d.end != nil {
		d.end(keys, va)
	}
}

// attaches gives the nodes that the decision attaches the volume to.
func attaches(d attachment.Decision) []attachment.NodeName {
	var nodes []attachment.NodeName
	for _, step := range d.Steps {
		if a, ok := step.(attachment.Attach); ok {
			nodes = append(nodes, a.Node)
		}
	}
	return nodes
}

// does reports whether the decision holds a step of that type.
func does[S attachment.Step](d attachment.Decision) bool {
	return slices.ContainsFunc(d.Steps, func(s attachment.Step) bool { _, ok := s.(S); return ok })
}

// Objects.

func aNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "boot-" + name, SystemUUID: "hw-" + name}
	for _, f := range change {
		f(n)
	}
	return n
}

func listing(inUse, attached []string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, v := range inUse {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, corev1.UniqueVolumeName(v))
		}
		for _, v := range attached {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(v)})
		}
	}
}

func aVolume(name, handle string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	pv := fixture.PersistentVolume(name, driver, handle, modes...)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)}
	return pv
}

// aClaim is bound to the PersistentVolume of its name.
func aClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: name},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func aPod(name, node string, sources ...corev1.VolumeSource) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name)}, Spec: corev1.PodSpec{NodeName: node}}
	for i, s := range sources {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: s})
	}
	return p
}

func byClaimOf(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// ownAttachment is the VolumeAttachment of a volume that the node connects by itself.
func ownAttachment(k key, node *corev1.Node) *storagev1.VolumeAttachment {
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return kube.StripAttachment(newAttachment(k, node.Name, kube.MachineOf(node), kube.OwnSource(k, modes)))
}

// anAttachment is as belay makes it, or without the annotation as upstream does.
func anAttachment(k key, node, pv string, annotated bool) *storagev1.VolumeAttachment {
	va := fixture.Attachment(kube.AttachmentName(k.Handle, k.Driver, node), k.Driver, node, pv)
	if annotated {
		va.Annotations = map[string]string{kube.VolumeHandleAnnotation: k.Handle}
	}
	return va
}

// seeded gives a source of random numbers that BELAY_SEED replays.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BELAY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BELAY_SEED: %v", err)
		}
	}
	t.Logf("BELAY_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func reports(d attachment.Decision) bool { return does[attachment.Report](d) }
