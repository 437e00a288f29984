package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReportWriter(t *testing.T) {
	entry := func(manager string, second int64, fields string) metav1.ManagedFieldsEntry {
		at := metav1.Unix(second, 0)
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
			Time: &at, FieldsV1: metav1.NewFieldsV1(fields), Subresource: "status",
		}
	}
	const report = `{"f:status": {"f:volumesAttached": {}}}`
	tests := map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    string // manager, "" for none
		kept    string // what the cache still knows
	}{
		"nobody": {entries: []metav1.ManagedFieldsEntry{entry("kubelet", 1, `{"f:status": {"f:volumesInUse": {}}}`)}},
		"upstream": {
			entries: []metav1.ManagedFieldsEntry{entry("kubelet", 9, `{"f:status": {"f:volumesInUse": {}}}`), entry("kube-controller-manager", 5, report)},
			want:    "kube-controller-manager", kept: "kube-controller-manager",
		},
		"belay": {entries: []metav1.ManagedFieldsEntry{entry(FieldManager, 5, report)}, want: FieldManager},
		"belay and another with the same list": {
			entries: []metav1.ManagedFieldsEntry{entry("kube-controller-manager", 7, report), entry(FieldManager, 5, report)}, want: FieldManager,
		},
		"the last of two others": {
			entries: []metav1.ManagedFieldsEntry{entry("a", 7, report), entry("b", 8, report)}, want: "b", kept: "b",
		},
		"a field of that name elsewhere": {
			entries: []metav1.ManagedFieldsEntry{entry("kubectl", 5, `{"f:metadata": {"f:annotations": {"f:volumesAttached": {}}}}`)},
		},
		"spoilt": {entries: []metav1.ManagedFieldsEntry{entry("x", 5, `{"f:volumesAttached`), {Manager: "y"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ManagedFields: tt.entries}}
			got, ok := ReportWriter(node)
			if got.Manager != tt.want || ok != (tt.want != "") {
				t.Errorf("writer = %v %v, want %q", got, ok, tt.want)
			}
			kept := StripNode(node)
			got, _ = ReportWriter(kept)
			if got.Manager != tt.kept {
				t.Errorf("the cache says %v, want %q", got, tt.kept)
			}
			if again, _ := ReportWriter(StripNode(kept)); again != got {
				t.Errorf("stripped twice: %v, once: %v", again, got)
			}
		})
	}
}

func TestAttachmentCreator(t *testing.T) {
	at := metav1.Unix(3, 0)
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "csi-attacher", FieldsV1: metav1.NewFieldsV1(`{"f:status": {"f:attached": {}}}`)},
		{Manager: "kube-controller-manager", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:spec": {"f:attacher": {}, "f:nodeName": {}}}`)},
	}}}
	got, ok := AttachmentCreator(va)
	if want := (Writer{"kube-controller-manager", time.Unix(3, 0)}); !ok || got.Manager != want.Manager || !got.Time.Equal(want.Time) {
		t.Errorf("maker = %v %v, want %v", got, ok, want)
	}
}

func TestEventWriter(t *testing.T) {
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "annotator", FieldsV1: metav1.NewFieldsV1(`{"f:metadata": {"f:annotations": {}}}`)},
		{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(`{"f:reason": {}, "f:source": {"f:component": {}}}`)},
	}}}
	if got, ok := EventWriter(e); !ok || got.Manager != "kube-controller-manager" {
		t.Errorf("writer = %v %v", got, ok)
	}
	if got, ok := EventWriter(&corev1.Event{}); ok {
		t.Errorf("no managed fields: %v", got)
	}
}
