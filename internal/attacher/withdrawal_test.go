package attacher

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// A publish hangs and backs off; the pod is deleted, and the controller notes on the VolumeAttachment that it is about to
// delete it. The attacher must not send the publish again: the unpublish would wait for it.
func TestNoPublishBesideAWithdrawal(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.answers(func(ctx context.Context, c call) error {
			if c.Method == "Publish" {
				return unanswered(ctx)
			}
			return nil
		})
		b.attach("v", "node1")
		b.pass(15*time.Second + 100*time.Millisecond)
		b.annotate("v", "node1", kube.DetachRequestedAnnotation, time.Now().UTC().Format(time.RFC3339))
		b.pass(24 * time.Millisecond)
		b.detach("v", "node1")
		b.within(time.Second, "detached", func() bool { return b.isGone("v", "node1") })
		if got, want := strings.Join(b.received("v"), ", "), "Publish id-node1, Unpublish id-node1"; got != want {
			b.t.Errorf("the driver received %s, want %s", got, want)
		}
	})
}

// The volume is wanted again, or the controller that requested the detach never continues it: nothing waits forever.
func TestRevertedWithdrawal(t *testing.T) {
	tests := map[string]struct {
		again  bool
		within time.Duration
	}{
		"wanted again":                   {true, time.Second},
		"left by a controller that left": {false, time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.attach("v", "node1", func(va *storagev1.VolumeAttachment) {
					va.Annotations = map[string]string{kube.DetachRequestedAnnotation: time.Now().UTC().Format(time.RFC3339)}
				})
				b.pass(5 * time.Second)
				if got := b.received("v"); len(got) > 0 {
					t.Errorf("the driver received %v for an attachment that is about to be deleted", got)
				}
				if tt.again {
					b.annotate("v", "node1", kube.DetachRequestedAnnotation, "")
				}
				b.within(tt.within, "attached", func() bool { return b.isAttached("v", "node1") })
			})
		})
	}
}

// An annotation that a person writes ends the back-off, belay's own do not.
func TestAnnotationsAndTheBackOff(t *testing.T) {
	for name, tt := range map[string]struct {
		annotation string
		calls      int
	}{
		"a person's":                     {"example.com/again", 7},
		"belay's":                        {kube.DetachCalledOffAnnotation, 6},
		"belay's, of the volume's state": {kube.BootIDAnnotation, 6},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.answers(func(context.Context, call) error { return status.Error(codes.Internal, "broken") })
				b.attach("v", "node1")
				b.pass(40 * time.Second) // six attempts, the next one after a minute
				b.annotate("v", "node1", tt.annotation, "now")
				b.pass(time.Second)
				if got := len(b.received("v")); got != tt.calls {
					t.Errorf("the driver received %d calls, want %d", got, tt.calls)
				}
			})
		})
	}
}
