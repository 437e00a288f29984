package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// hostile are the objects of a tenant and of a kubelet, with a long value wherever the API server accepts one. The handle of a volume and the
// lists of a Node stay as they are.
func hostile(long string) []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: "a", Name: "x", UID: "1", Annotations: map[string]string{"a.example/b": long}}
	for i := range 100 {
		meta.OwnerReferences = append(meta.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: "K", Name: long, UID: types.UID(long), Controller: new(i == 0),
		})
		meta.Finalizers = append(meta.Finalizers, fmt.Sprintf("a.example/%d", i))
	}
	state := corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Message: long}, Terminated: &corev1.ContainerStateTerminated{Message: long, Reason: long},
	}
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: long, Message: long}
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: long}},
		&coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{HolderIdentity: &long, PreferredHolder: &long}},
		&corev1.Event{
			ObjectMeta: meta, Message: long, Reason: long, Action: long, ReportingController: long, ReportingInstance: long, Type: corev1.EventTypeWarning,
			Source:         corev1.EventSource{Component: long, Host: long},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "a", Name: long, UID: types.UID(long), FieldPath: long},
		},
		&corev1.Pod{
			ObjectMeta: meta,
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: long},
			}}}},
			Status: corev1.PodStatus{
				Reason: long, Message: long, Conditions: []corev1.PodCondition{condition},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: state, LastTerminationState: state}},
			},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:               &corev1.ObjectReference{Namespace: "a", Name: long},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "handle-" + long}},
			},
			Status: corev1.PersistentVolumeStatus{Message: long, Reason: long},
		},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
			Conditions:   []corev1.NodeCondition{{Type: corev1.NodeReady, Reason: long, Message: long}},
			VolumesInUse: []corev1.UniqueVolumeName{corev1.UniqueVolumeName("in-use-" + long)},
		}},
	}
}

// TestLongNamesInSnapshot: what a client with few rights writes is cut before it enters a snapshot; handles and the lists of Nodes are not.
func TestLongNamesInSnapshot(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	r := served(t, hostile(long)...)
	x := r.start()
	x.history = true
	x.claims(t.Context(), "")
	x.pods(t.Context(), "")
	x.volumes(t.Context())
	x.nodes(t.Context())
	x.warnings(t.Context(), "")
	x.leases(t.Context(), true)
	x.claim(t.Context(), "a", "x")
	s := x.finish()
	if n := len(s.Claims); n != 2 || len(s.Pods) != 1 || len(s.Volumes) != 1 || len(s.Nodes) != 1 || len(s.Events) != 1 || len(s.Leases)+len(s.OtherLeases) != 1 {
		t.Fatalf("read %d claims, %+v", n, s.Unread)
	}
	if got := s.Volumes[0].Spec.CSI.VolumeHandle; got != "handle-"+long {
		t.Errorf("the handle was cut to %d bytes", len(got))
	}
	if got := s.Nodes[0].Status.VolumesInUse[0]; string(got) != "in-use-"+long {
		t.Errorf("the entry of the Node's list was cut to %d bytes", len(got))
	}
	s.Volumes[0].Spec.CSI.VolumeHandle, s.Nodes[0].Status.VolumesInUse = "", nil
	document, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if bound := 100 << 10; len(document) > bound {
		t.Errorf("keeps %d bytes, want at most %d", len(document), bound)
	}
	if strings.Contains(string(document), long[:decision.MaxText+1]) {
		t.Error("a long text is in the snapshot")
	}
	e, err := diagnosis.Explain(s, diagnosis.Ref{Resource: diagnosis.Claims, Namespace: "a", Name: "x"})
	if err != nil || len(e.Findings) == 0 || e.Findings[0].Volume.PersistentVolume != kube.NoName {
		t.Errorf("the claim is explained as %+v (%v)", e, err)
	}
}

// TestLongNamesInArchive: the archive of kubectl belay bundle has the same objects as they come from the API server.
func TestLongNamesInArchive(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	for _, object := range hostile(long) {
		t.Run(fmt.Sprintf("%T", object), func(t *testing.T) {
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				t.Fatal(err)
			}
			o := &unstructured.Unstructured{Object: fields}
			Cut(o)
			handle, _, _ := unstructured.NestedString(o.Object, "spec", "csi", "volumeHandle")
			if _, ok := object.(*corev1.PersistentVolume); ok && handle != "handle-"+long {
				t.Errorf("the handle was cut to %d bytes", len(handle))
			}
			inUse, _, _ := unstructured.NestedStringSlice(o.Object, "status", "volumesInUse")
			if _, ok := object.(*corev1.Node); ok && inUse[0] != "in-use-"+long {
				t.Errorf("the entry of the Node's list was cut to %d bytes", len(inUse[0]))
			}
			unstructured.RemoveNestedField(o.Object, "spec", "csi", "volumeHandle")
			unstructured.RemoveNestedField(o.Object, "status", "volumesInUse")
			document, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(document), long[:decision.MaxText+1]) {
				t.Error("a long text is left")
			}
		})
	}
}
