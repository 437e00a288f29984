package kube

import (
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
)

// What an attacher wrote about a call counts until the call is over, whatever became of the attacher.
func TestPendingCallOf(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	publish := PendingCall{Reason: "CallInFlight", Call: publishCall, Since: noon, Until: at(360)}
	unpublish := PendingCall{Reason: "CallInFlight", Call: "ControllerUnpublishVolume", Since: noon, Until: at(360)}
	heldBack := PendingCall{Reason: "DriverBusy", Since: noon, Until: at(600)}
	failed := func(s int) *storagev1.VolumeError {
		return &storagev1.VolumeError{Time: metav1.NewTime(at(s)), Message: "no"}
	}
	tests := map[string]struct {
		call   PendingCall
		change func(*storagev1.VolumeAttachment)
		now    int
		want   bool
	}{
		"in flight":                       {publish, nil, 20, true},
		"after the attacher has ended it": {publish, nil, 361, false},
		"attached":                        {publish, func(va *storagev1.VolumeAttachment) { va.Status.Attached = true }, 20, false},
		"an error before it":              {publish, func(va *storagev1.VolumeAttachment) { va.Status.AttachError = failed(-30) }, 20, true},
		"an error of the same second":     {heldBack, func(va *storagev1.VolumeAttachment) { va.Status.AttachError = failed(0) }, 20, true},
		"its own error":                   {publish, func(va *storagev1.VolumeAttachment) { va.Status.AttachError = failed(15) }, 20, false},
		"the deletion ends an attach":     {publish, func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = new(metav1.NewTime(at(15))) }, 20, false},
		"a detach": {unpublish, func(va *storagev1.VolumeAttachment) {
			va.DeletionTimestamp, va.Status.Attached = new(metav1.NewTime(at(-1))), true
		}, 20, true},
		"a detach that failed": {unpublish, func(va *storagev1.VolumeAttachment) {
			va.DeletionTimestamp, va.Status.DetachError = new(metav1.NewTime(at(-1))), failed(15)
		}, 20, false},
		"a detach that ended": {unpublish, func(va *storagev1.VolumeAttachment) {
			va.DeletionTimestamp, va.Finalizers = new(metav1.NewTime(at(-1))), []string{"other"}
		}, 20, false},
		"no call without the finalizer":       {publish, func(va *storagev1.VolumeAttachment) { va.Finalizers = nil }, 20, false},
		"held back, before the finalizer":     {heldBack, func(va *storagev1.VolumeAttachment) { va.Finalizers = nil }, 599, true},
		"held back, and not written again":    {heldBack, nil, 601, false},
		"an end that no attacher has set":     {PendingCall{Reason: "CallInFlight", Call: publishCall, Since: noon, Until: at(1_000_000)}, nil, 20, false},
		"a reason that is no word":            {PendingCall{Reason: "x\ny", Since: noon, Until: at(360)}, nil, 20, false},
		"a reason as long as a text":          {PendingCall{Reason: decision.Reason(strings.Repeat("x", 254)), Since: noon, Until: at(360)}, nil, 20, false},
		"an annotation that is no such thing": {publish, func(va *storagev1.VolumeAttachment) { va.Annotations[PendingCallAnnotation] = "yes" }, 20, false},
	}
	for name, tt := range tests {
		va := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: "d"}}
		va.Annotations, va.Finalizers = map[string]string{PendingCallAnnotation: tt.call.Encode()}, []string{AttacherFinalizer("d")}
		if tt.change != nil {
			tt.change(va)
		}
		got, ok := PendingCallOf(va, at(tt.now))
		if ok != tt.want || ok && got != tt.call {
			t.Errorf("%s: %+v, %v, want %v", name, got, ok, tt.want)
		}
	}
}
