package attachdetach

import (
	"fmt"
	"maps"
	"runtime"
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
)

// TestBytesPerVolume measures what is kept for one attached volume: its pod, claim,
// PersistentVolume, VolumeAttachment and a twentieth of its Node, with their places in
// the stores and indexes, and that its events were handled. The table of memory in
// docs/adopt-controller.md is computed from it.
func TestBytesPerVolume(t *testing.T) {
	for attached, tt := range map[string]struct {
		make  func(i int) []client.Object
		bound int64 // bytes, a hundredth above what is measured
	}{
		"by belay":                   {attachedVolume, 6_970},
		"by kube-controller-manager": {attachedByUpstream, 6_270},
	} {
		t.Run(attached, func(t *testing.T) {
			each := bytesPerVolume(t, tt.make)
			t.Logf("%d bytes per volume", each)
			if each > tt.bound {
				t.Errorf("keeps %d bytes per volume, want at most %d", each, tt.bound)
			}
		})
	}
}

func bytesPerVolume(t *testing.T, attached func(i int) []client.Object) int64 {
	t.Helper()
	const volumes = 10_000
	stores := map[string]toolscache.Indexer{}
	for _, kind := range kinds {
		indexers := toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
		maps.Copy(indexers, kind.indexers)
		stores[kind.name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)
	}
	transforms := map[string]toolscache.TransformFunc{}
	for object, options := range kube.CacheOptions().ByObject {
		transforms[fmt.Sprintf("%T", object)] = options.Transform
	}
	w := clusterStateOf(stores, ownClock{})
	before := heapAlloc()
	for i := range volumes {
		for _, object := range attached(i) {
			kept, err := transforms[fmt.Sprintf("%T", object)](overTheWire(t, object))
			if err != nil {
				t.Fatal(err)
			}
			if err := stores[fmt.Sprintf("%T", kept)[len("*v1."):]].Add(kept); err != nil {
				t.Fatal(err)
			}
			if va, ok := kept.(*storagev1.VolumeAttachment); ok {
				w.attachmentChanged(nil, va, noDoubts{})
			}
		}
	}
	each := (heapAlloc() - before) / volumes
	runtime.KeepAlive(w)
	return each
}

func heapAlloc() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// overTheWire returns the object like one from a watch: with its own copy of every string.
func overTheWire(t *testing.T, object client.Object) client.Object {
	t.Helper()
	type wire interface {
		client.Object
		Marshal() ([]byte, error)
		Unmarshal(data []byte) error
	}
	data, err := object.(wire).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	read := object.DeepCopyObject().(wire)
	read.(interface{ Reset() }).Reset()
	if err := read.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return read
}

// attachedVolume is the i-th volume as a cloud has it; the first of each node brings the
// Node.
func attachedVolume(i int) []client.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("0f5b4a1e-0000-4000-8000-%012d", i)),
			ResourceVersion: fmt.Sprint(1_000_000 + i), CreationTimestamp: metav1.NewTime(time.Unix(1767225600, 0)),
		}
	}
	node := fmt.Sprintf("ip-10-0-%d.eu-west-1.compute.internal", i/perNode)
	claim, pv, handle := fmt.Sprintf("data-db-%06d", i), fmt.Sprintf("pvc-0f5b4a1e-0000-4000-8000-%012d", i), fmt.Sprintf("vol-%017d", i)
	const ebs = "ebs.csi.aws.com"

	pod := aPod("", node, byClaimOf(claim))
	pod.ObjectMeta = meta("team-a", fmt.Sprintf("db-%06d", i))
	pvc := aClaim("")
	pvc.ObjectMeta, pvc.Spec.VolumeName = meta("team-a", claim), pv
	volume := aVolume("", handle)
	volume.ObjectMeta, volume.Spec.CSI.Driver = meta("", pv), ebs
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: claim, UID: pvc.UID}
	va := anAttachment(key{Driver: ebs, Handle: handle}, node, pv, true)
	name, annotations := va.Name, va.Annotations
	va.ObjectMeta = meta("", name)
	va.Annotations = annotations
	va.Annotations[kube.NodeUIDAnnotation] = "0f5b4a1e-3333-4000-8000-000000000000"
	va.Annotations[kube.BootIDAnnotation] = "3c4bd6b5-0000-4000-8000-000000000000"
	va.Annotations[kube.SystemUUIDAnnotation] = "ec2bd6b5-0000-4000-8000-000000000000"
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true}
	objects := []client.Object{pod, pvc, volume, va}
	if i%perNode == 0 {
		var lists []string
		for n := range perNode {
			lists = append(lists, kube.UniqueVolumeName(ebs, fmt.Sprintf("vol-%017d", i+n)))
		}
		objects = append(objects, aNode(node, listing(lists, lists)))
	}
	return objects
}

// attachedByUpstream is attachedVolume with the one annotation that kube-controller-manager's VolumeAttachments get, from csi-attacher.
func attachedByUpstream(i int) []client.Object {
	objects := attachedVolume(i)
	for _, object := range objects {
		if va, ok := object.(*storagev1.VolumeAttachment); ok {
			va.Annotations = map[string]string{kube.NodeIDAnnotation: fmt.Sprintf("i-%017d", i/perNode)}
		}
	}
	return objects
}

// The state that is kept for Nodes and VolumeAttachments is dropped with them.
func TestStateOfDeletedObjectsIsDropped(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aNode("a", isReady))
	node, _ := m.nodes.Get("a")
	now := modelTime
	m.kubelets.recordLease("a", node.UID, "1", 40*time.Second, now)
	m.kubelets.recordLease("a", node.UID, "2", 40*time.Second, now.Add(attachment.SyncWindow))
	va := sharedAttachment(k, "a")
	m.put(va)
	seen, _ := m.attachments.Get(va.Name)
	m.deletes.add(seen.UID, seen.ResourceVersion) // its delete had no answer, and was carried out
	m.reports.add(node.Name, node.ResourceVersion)
	m.remove(va)
	m.remove(aNode("a"))
	if len(m.kubelets.leaseChecks) > 0 {
		t.Errorf("looks at a kubelet whose Node is gone: %v", m.kubelets.leaseChecks)
	}
	if len(m.deletes.versions) > 0 {
		t.Errorf("doubts about a VolumeAttachment that is gone: %v", m.deletes.versions)
	}
	if len(m.reports.versions) > 0 {
		t.Errorf("doubts about a Node that is gone: %v", m.reports.versions)
	}
}
