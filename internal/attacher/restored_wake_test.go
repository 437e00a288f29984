package attacher

import (
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// What Exit names for the wait of a restored VolumeAttachment wakes its key: "or a node has the recorded ID". That may be a node of another name: the
// cluster that is restored has its machines under new names, and the node registers after the restore. "Correctness does not depend on" --resync
// (flags.go), which is what ends the wait otherwise, after up to 10 minutes.
func TestNodeOfAnyNameWakesARestoredAttachment(t *testing.T) {
	for _, node := range []string{"node1", "renamed"} {
		t.Run(node, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.node("node1", "")
				b.attach("v", "node1", worked, func(va *storagev1.VolumeAttachment) { owns(va, "velero-server", kube.NodeIDAnnotation) })
				b.pass(time.Minute)
				b.detach("v", "node1")
				b.pass(time.Minute)
				if b.isGone("v", "node1") || len(b.received("v")) > 0 {
					t.Fatalf("it is not held: calls %v", b.received("v"))
				}
				b.node(node, "id-node1")
				b.within(time.Hour, "unpublished and gone", func() bool { return b.isGone("v", "node1") })
			})
		})
	}
}
