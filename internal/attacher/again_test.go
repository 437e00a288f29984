package attacher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// A person who knows that the storage has lost an attached volume sets the annotation retry, and the volume is published again: once for each value.
// What any other tool annotates asks for nothing, or a tool that labels objects would cause a storm of calls.
func TestRetryPublishesAnAttachedVolumeAgain(t *testing.T) {
	tests := map[string]struct {
		change func(b *bubble)
		want   int // publishes
	}{
		"retry": {func(b *bubble) { b.annotate("v", "node1", "retry", "1") }, 1},
		"retry twice": {func(b *bubble) {
			b.annotate("v", "node1", "retry", "1")
			b.pass(time.Second)
			b.annotate("v", "node1", "retry", "2")
		}, 2},
		"retry, removed": {func(b *bubble) {
			b.annotate("v", "node1", "retry", "1")
			b.pass(time.Second)
			b.annotate("v", "node1", "retry", "")
		}, 1},
		"another annotation": {func(b *bubble) { b.annotate("v", "node1", "example.com/team", "a") }, 0},
		"the node has another ID": {func(b *bubble) {
			b.node("node1", "another")
			b.pass(time.Second)
			b.annotate("v", "node1", "retry", "1")
		}, 0},
		"the node has no ID":          {func(b *bubble) { b.node("node1", ""); b.pass(time.Second); b.annotate("v", "node1", "retry", "1") }, 0},
		"it is being deleted by then": {func(b *bubble) { b.detach("v", "node1"); b.pass(time.Second) }, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.attachedBefore("v", "node1")
				b.pass(time.Second)
				tt.change(b)
				b.pass(10 * time.Minute)
				if got := strings.Count(fmt.Sprint(b.received("v")), "Publish id-node1"); got != tt.want {
					t.Errorf("published again %d times, want %d: %v", got, tt.want, b.received("v"))
				}
			})
		})
	}
}

// A volume that the driver lists elsewhere is not published here because a person asks for it: that could make a second writer (S1).
func TestRetryOfAVolumeThatIsListedElsewhere(t *testing.T) {
	inListingBubble(t, func(b *bubble, s *array) {
		b.node("node2", "id-node2")
		b.attach("v", "node1")
		b.pass(time.Second)
		s.move("v", "id-node1", "id-node2")
		b.pass(3 * time.Minute)
		b.annotate("v", "node1", "retry", "1")
		b.pass(10 * time.Minute)
		if calls := b.received("v"); len(calls) != 1 {
			t.Errorf("calls: %v, want the first publish only", calls)
		}
	})
}

// The annotation that is there when an attacher starts was set for an earlier process.
func TestRetryOfAnEarlierProcess(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.attach("v", "node1", worked, attached, func(va *storagev1.VolumeAttachment) { va.Annotations[kube.RetryAnnotation] = "1" })
		b.pass(10 * time.Minute)
		if calls := b.received("v"); len(calls) != 0 {
			t.Errorf("calls: %v", calls)
		}
	})
}
