package attacher

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// The previous leader's last write arrives when this one has begun, and the watch has yet to
// show it: a node ID under which the volume may be published. It is not overwritten with the
// one that the node has now, but unpublished first.
func TestRecordedNodeIDIsNotOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.node("node1", "")
		b.attach("v", "node1")
		stop := b.start()
		defer stop()
		time.Sleep(time.Minute) // it is known, and cannot be attached: the node has no ID
		b.api.hold()
		b.change("v", "node1", func(va *storagev1.VolumeAttachment) {
			va.Finalizers = []string{kube.AttacherFinalizer(bubbleDriver)}
			va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-earlier"}
		})
		b.node("node1", "id-now")
		time.Sleep(time.Minute)
		b.api.proceed()
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"Unpublish id-earlier", "Publish id-now"}, b.received("")); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if !b.isAttached("v", "node1") {
			t.Error("not attached")
		}
		if failed := b.log.of("API request failed, retrying"); len(failed) > 0 {
			t.Errorf("logged as failed: %v", failed)
		}
	})
}
