package attacher

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The driver answers OK to the unpublish of a node although the volume stays there, and refuses to publish it elsewhere; then the Node is deleted, and
// its CSINode with it. This process was confirmed that unpublish itself, no attachment is for the ID, and a Node that is gone holds nothing (ADR 10,
// point 2): it lists nothing in use. Liveness: the unpublish is repeated, and the volume attached. It is with the CSINode left behind alone, which
// its garbage collector removes.
func TestConfirmedUnpublishFromADeletedNodeIsRepeated(t *testing.T) {
	for name, with := range map[string]struct{ node, csiNode bool }{
		"the Node is there": {false, false}, "the Node is gone": {true, false}, "and its CSINode": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				blind, left := b.blip(codes.Internal)
				b.realNode("a", corev1.ConditionTrue)
				b.realNode("b", corev1.ConditionTrue)
				b.attach("vol", "a")
				b.within(time.Second, "attached", func() bool { return b.isAttached("vol", "a") })
				blind.Store(true)
				b.detach("vol", "a")
				b.within(time.Second, "detached", func() bool { return b.isGone("vol", "a") })
				if with.node {
					b.api.remove("nodes", "a")
				}
				if with.csiNode {
					b.api.put("csinodes", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a", DeletionTimestamp: new(metav1.Now())}})
				}
				b.attach("vol", "b")
				b.pass(10 * time.Second)
				blind.Store(false)
				b.within(time.Hour, "attached elsewhere", func() bool { return b.isAttached("vol", "b") && !left.Load() })
			})
		})
	}
}
