package attacher

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// Two Nodes have one CSI node ID, and the driver's upgrade, which reaches one node after the other, gave it another form: b was attached by the new
// one, then a by the old one. The controller has recorded that a's is of the same machine. Their decisions have two keys, and each rests on what the
// cache has of the other: a is released because b stays, and while that request is under way b is deleted, and is released because a, the younger
// one of two that end, is to unpublish. S5: one of them has to unpublish.
func TestTwoReleasesOfOnePlaceAtOnce(t *testing.T) {
	for name, patch := range map[string]time.Duration{"one after the other": 0, "at once": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.onOneID("a", "b")
				b.volume("vol", corev1.ReadWriteMany)
				b.attach("vol", "b", worked, attached, recordedAs("id-one"))
				b.pass(2 * time.Second)
				b.attach("vol", "a", worked, attached, recordedAs("id-old"), func(va *storagev1.VolumeAttachment) {
					va.Annotations[kube.SameMachineAnnotation] = "id-one"
				})
				b.pass(2 * time.Second)
				b.slow(patch)
				b.detach("vol", "a")
				b.pass(time.Second)
				b.detach("vol", "b")
				b.within(10*time.Minute, "both gone", func() bool { return b.isGone("vol", "a") && b.isGone("vol", "b") })
				if !slices.ContainsFunc(b.received("vol"), func(c string) bool { return strings.HasPrefix(c, "Unpublish ") }) {
					t.Errorf("S5: both finalizers are off and nothing was unpublished: calls %v", b.received("vol"))
				}
			})
		})
	}
}
