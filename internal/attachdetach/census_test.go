package attachdetach

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// populace is a cluster in the caches alone.
type populace struct {
	testing.TB
	*clusterState
	stores map[string]toolscache.Indexer
}

func newPopulace(tb testing.TB) *populace {
	tb.Helper()
	stores := map[string]toolscache.Indexer{}
	for _, kind := range kinds {
		stores[kind.name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, kind.indexers)
		if kind.indexers == nil {
			stores[kind.name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
		}
	}
	return &populace{tb, clusterStateOf(stores, ownClock{}), stores}
}

func (p *populace) add(kind string, obj client.Object) {
	p.Helper()
	if err := p.stores[kind].Add(obj); err != nil {
		p.Fatal(err)
	}
}

func (p *populace) node(name string, managed bool, reported ...string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if managed {
		node.Annotations = map[string]string{kube.ManagedAttachAnnotation: "true"}
	}
	for _, v := range reported {
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(v)})
	}
	p.add("Node", kube.StripNode(node))
}

// volume makes a bound PersistentVolume, and its attachment if it is attached somewhere.
func (p *populace) volume(name, driver, node string) {
	p.add("PersistentVolumeClaim", &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: name},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	})
	p.add("PersistentVolume", kube.StripVolume(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID(name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	}))
	if node != "" {
		p.add("VolumeAttachment", &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(name, driver, node)},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
			},
		})
	}
}

func (p *populace) pod(name, node string, phase corev1.PodPhase, claims ...string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	p.add("Pod", kube.StripPod(pod))
}

func TestCensus(t *testing.T) {
	p := newPopulace(t)
	p.node("a", true, "kubernetes.io/csi/disk.test^v1", "kubernetes.io/fc/wwn:0")
	p.add("VolumeAttachment", newAttachment(key{Driver: kube.FibreChannelPlugin, Handle: "wwn:0"}, "a", attachment.Machine{}, storagev1.VolumeAttachmentSource{}))
	p.node("b", false)
	p.volume("v1", "disk.test", "a")
	p.volume("v2", "disk.test", "")
	p.volume("v3", "local.test", "")
	p.add("CSIDriver", &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "local.test"}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}})
	p.pod("p1", "a", corev1.PodRunning, "v1", "v3")
	p.pod("p2", "a", corev1.PodRunning, "v1") // counts in use, not as another place
	p.pod("p3", "a", corev1.PodSucceeded, "v2")
	p.pod("p4", "b", corev1.PodRunning, "v2")
	p.pod("p5", "", corev1.PodPending, "v2")
	want := telemetry.Census{
		Desired: map[string]int{"disk.test": 1},
		Actual:  map[string]int{"disk.test": 1, "kubernetes.io/fc": 1},
		InUse: map[attachment.NodeName]map[string]int{
			"a": {"disk.test": 3, "local.test": 1}, "b": {"disk.test": 1},
		},
	}
	if diff := cmp.Diff(want, p.census()); diff != "" {
		t.Errorf("census (-want +got):\n%s", diff)
	}
}

// What one scrape costs with 20,000 volumes on 1,000 nodes.
func BenchmarkCensus(b *testing.B) {
	p := newPopulace(b)
	for n := range 1000 {
		node := fmt.Sprintf("node-%d", n)
		var reported []string
		for v := range 20 {
			name := fmt.Sprintf("pvc-%d-%d", n, v)
			p.volume(name, "disk.test", node)
			p.pod("pod-"+name, node, corev1.PodRunning, name)
			reported = append(reported, kube.UniqueVolumeName("disk.test", name))
		}
		p.node(node, true, reported...)
	}
	for b.Loop() {
		if c := p.census(); c.Actual["disk.test"] != 20000 || c.Desired["disk.test"] != 20000 {
			b.Fatal(c.Actual, c.Desired)
		}
	}
}
