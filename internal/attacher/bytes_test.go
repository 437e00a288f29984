package attacher

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

const sizedDriver = "ebs.csi.example.com"

// sizedMeta is what an object usually carries besides its purpose.
func sizedMeta(name string, i int) metav1.ObjectMeta {
	now := metav1.NewTime(time.Unix(1767225600, 0))
	written := metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:csi.alpha.kubernetes.io/node-id":{}},"f:finalizers":{".":{},"v:\"external-attacher/ebs-csi-example-com\"":{}}}}`)
	return metav1.ObjectMeta{
		Name: name, UID: types.UID(fmt.Sprintf("0f5b4a1e-0000-4000-8000-%012d", i)), ResourceVersion: fmt.Sprint(1000000 + i), CreationTimestamp: now,
		ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "csi-attacher", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "storage.k8s.io/v1", FieldsType: "FieldsV1", FieldsV1: written, Time: &now},
			{Manager: "csi-attacher", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "storage.k8s.io/v1", FieldsType: "FieldsV1", FieldsV1: written, Time: &now, Subresource: "status"},
			{Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "storage.k8s.io/v1", FieldsType: "FieldsV1", FieldsV1: written, Time: &now},
		},
	}
}

func sizedAttachment(i int) *storagev1.VolumeAttachment {
	va := &storagev1.VolumeAttachment{ObjectMeta: sizedMeta(fmt.Sprintf("csi-%064d", i), i)}
	va.Finalizers = []string{"external-attacher/ebs-csi-example-com"}
	va.Annotations = map[string]string{"csi.alpha.kubernetes.io/node-id": fmt.Sprintf("i-%017d", i%1000)}
	va.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: sizedDriver, NodeName: fmt.Sprintf("ip-10-0-%d.example.com", i%1000),
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(fmt.Sprintf("pvc-0f5b4a1e-0000-4000-8000-%012d", i))},
	}
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"devicePath": "/dev/xvdba"}}
	return va
}

func sizedVolume(i int) *corev1.PersistentVolume {
	name := fmt.Sprintf("pvc-0f5b4a1e-0000-4000-8000-%012d", i)
	pv := &corev1.PersistentVolume{ObjectMeta: sizedMeta(name, i)}
	pv.Finalizers = []string{"kubernetes.io/pv-protection", "external-attacher/ebs-csi-example-com"}
	pv.Annotations = map[string]string{
		"pv.kubernetes.io/provisioned-by": sizedDriver, "volume.kubernetes.io/provisioner-deletion-secret-name": "",
		"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
	}
	pv.Spec = corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: new(corev1.PersistentVolumeFilesystem),
		Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
		ClaimRef:         &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "team", Name: fmt.Sprintf("data-db-%d", i), UID: types.UID(strings.TrimPrefix(name, "pvc-")), ResourceVersion: "1"},
		StorageClassName: "fast", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-1"}}},
		}}}},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: sizedDriver, VolumeHandle: fmt.Sprintf("vol-%017d", i), FSType: "ext4",
			VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1763650000000-8081-" + sizedDriver, "type": "fast"},
		}},
	}
	pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}
	return pv
}

// decoded returns an object like one from a watch: with its own copy of every string.
func decoded[T interface{ Unmarshal([]byte) error }](object interface{ Marshal() ([]byte, error) }, into T) T {
	data, err := object.Marshal()
	if err != nil {
		panic(err)
	}
	if err := into.Unmarshal(data); err != nil {
		panic(err)
	}
	return into
}

// TestBytesPerObject measures what one object costs in the caches, its places in the indexes included: at 20,000 volumes
// the caches are most of the process, and the bounds are what keeps it at half of csi-attacher's memory.
func TestBytesPerObject(t *testing.T) {
	const many = 8000
	o, err := newObjects(fake.NewClientset(), sizedDriver, 0)
	must(t, err)
	attachment := func(i int) any { return decoded(sizedAttachment(i), &storagev1.VolumeAttachment{}) }
	volume := func(i int) any { return decoded(sizedVolume(i), &corev1.PersistentVolume{}) }
	other := func(i int) any {
		pv := sizedVolume(i)
		pv.Spec.CSI.Driver = "other.csi.example.com"
		return decoded(pv, &corev1.PersistentVolume{})
	}
	for name, tt := range map[string]struct {
		store cache.Store
		make  func(i int) any
		bound int64 // bytes, about a tenth above what is measured
	}{
		"VolumeAttachment":                   {o.attachmentInformer.GetStore(), attachment, 1090},
		"PersistentVolume":                   {o.volumeInformer.GetStore(), volume, 1300},
		"PersistentVolume of another driver": {o.volumeInformer.GetStore(), other, 980},
	} {
		t.Run(name, func(t *testing.T) {
			whole := retained(t, tt.store, many, tt.make)
			kept := retained(t, tt.store, many, func(i int) any {
				object, err := o.trimObject(tt.make(i))
				must(t, err)
				return object
			})
			t.Logf("%d bytes as sent, %d bytes kept", whole, kept)
			if kept > tt.bound {
				t.Errorf("keeps %d bytes, want at most %d", kept, tt.bound)
			}
		})
	}
}

// retained is how many bytes of heap each of n objects occupies in a store, which is emptied afterwards.
func retained(t *testing.T, store cache.Store, n int, object func(i int) any) int64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		must(t, store.Add(object(i)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(store)
	must(t, store.Replace(nil, ""))
	return (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(n)
}

// TestTrimmedTwice: a cache may trim an object twice; it is the same then. Labels and others' annotations are kept as far as
// a change of them shows.
func TestTrimmedTwice(t *testing.T) {
	o, err := newObjects(fake.NewClientset(), sizedDriver, 0)
	must(t, err)
	once := o.trimAttachment(sizedAttachment(1))
	if diff := cmp.Diff(map[string]string{"csi.alpha.kubernetes.io/node-id": "i-00000000000000001"}, once.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	seen := map[string]bool{once.Annotations[foreignDigest]: true}
	for name, change := range map[string]func(va *storagev1.VolumeAttachment){
		"a label":            func(va *storagev1.VolumeAttachment) { va.Labels = map[string]string{"a": "b"} },
		"an annotation":      func(va *storagev1.VolumeAttachment) { va.Annotations["a"] = "b" },
		"another annotation": func(va *storagev1.VolumeAttachment) { va.Annotations["a"] = "c" },
	} {
		va := sizedAttachment(1)
		change(va)
		once := o.trimAttachment(va)
		if mark := once.Annotations[foreignDigest]; seen[mark] {
			t.Errorf("%s does not show: %q", name, mark)
		} else {
			seen[mark] = true
		}
		if twice := o.trimAttachment(once); twice != once {
			t.Errorf("%s: trimmed twice it is another object", name)
		}
	}
	if volume := o.trimVolume(sizedVolume(1)); o.trimVolume(volume) != volume {
		t.Error("a volume trimmed twice is another object")
	}
	if va := decoded(&storagev1.VolumeAttachment{}, &storagev1.VolumeAttachment{}); isTrimmed(va.ObjectMeta) {
		t.Error("an object without any written field counts as trimmed")
	}
}
