package recovery

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// A fence of a deleted Node ends when all of its VolumeAttachments are being deleted (fencing nothingLeft). The detector takes the same VolumeAttachments
// for a reason to begin one: while a driver does not answer, and its finalizer stays, NodeFences are made and removed again and again.
func TestHostileFenceThatEndedWithNothingLeftBeginsNoOther(t *testing.T) {
	va := fixture.Attachment("va-of-gone", "disk.test", "gone", "pv-1")
	va.Annotations = map[string]string{kube.NodeUIDAnnotation: "uid-gone", kube.BootIDAnnotation: "boot-gone", kube.SystemUUIDAnnotation: "hw-gone"}
	va.Status.Attached = true
	at := metav1.NewTime(time.Now())
	va.DeletionTimestamp, va.Finalizers = &at, []string{"external-attacher/disk-test"}
	boot := fencing.Boot{Node: "gone", NodeUID: "uid-gone", ID: "boot-gone", Machine: "hw-gone"}

	end := fencing.Decide(time.Now(), fencing.Fence{Boot: boot, Phase: fencing.Fencing, NodeDeleted: true}, fencing.Observed{
		Exists: fencing.No, Listed: true, Attachments: []fencing.Attachment{{Name: va.Name, Deleting: true}},
	})
	if len(end.Steps) != 1 || end.Steps[0].(fencing.Enter).Phase != fencing.Cancelled {
		t.Fatalf("the fence does not end: %+v", end.Steps)
	}
	d := &detector{parts: partsOver(nil, nodeOf("n1", 0), va), held: map[string]hold{}}
	if again, err := d.leftBehind(t.Context(), boot); err != nil || again {
		t.Errorf("the fence has ended, and the detector begins the next one for the same VolumeAttachment (%v)", err)
	}
}
