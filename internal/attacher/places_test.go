package attacher

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/kube"
)

// knows is a driver that knows these node IDs alone.
func (b *bubble) knows(ids ...string) {
	b.answers(func(_ context.Context, c call) error {
		if slices.Contains(ids, c.Node) {
			return nil
		}
		return status.Error(codes.NotFound, "no such node")
	})
}

// An upgrade of the driver changed the form of its node IDs: it no longer knows the one that was recorded at attach. The present one is
// tried all the same. Its OK is the end only where the controller has recorded that both are the same machine (S5).
func TestPlacesAreWorkedOffByThemselves(t *testing.T) {
	for name, tt := range map[string]struct {
		sameMachine string
		gone        bool
	}{
		"the controller knows the machine":     {"new-node", true},
		"the controller says nothing":          {"", false},
		"the controller knows another machine": {"old-node", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.knows("new-node")
				b.node("node", "new-node")
				b.attachedBefore("vol", "node")
				b.annotate("vol", "node", kube.SameMachineAnnotation, tt.sameMachine)
				b.detach("vol", "node")
				b.within(time.Second/2, "the present ID tried", func() bool { return slices.Contains(b.received("vol"), "Unpublish new-node") })
				if b.isGone("vol", "node") != tt.gone {
					t.Errorf("S5: gone: %v, want %v; calls %v", !tt.gone, tt.gone, b.received("vol"))
				}
				if tt.gone {
					return
				}
				if va := b.attachment("vol", "node"); va.Status.DetachError == nil {
					t.Error("the status does not say what the driver answered")
				}
				b.pass(time.Hour)
				if b.isGone("vol", "node") {
					t.Error("S5: the finalizer is off although the driver confirmed nothing of the recorded ID")
				}
				b.annotate("vol", "node", kube.SameMachineAnnotation, "new-node")
				b.within(time.Second, "gone", func() bool { return b.isGone("vol", "node") })
			})
		})
	}
}

// The node ID changed its form between a publish and its record. The volume is published under the new one once the driver has confirmed
// both, and what it does not know any more keeps nothing later.
func TestNodeIDChangesItsFormBeforeTheRecord(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.knows("new-node")
		b.node("node", "new-node")
		b.attach("vol", "node", worked)
		b.pass(time.Minute)
		if b.isAttached("vol", "node") || slices.Contains(b.received("vol"), "Publish new-node") {
			t.Fatalf("published although it may be at the recorded ID: %v", b.received("vol"))
		}
		b.annotate("vol", "node", kube.SameMachineAnnotation, "new-node")
		b.within(5*time.Minute, "attached", func() bool { return b.isAttached("vol", "node") })
		b.detach("vol", "node")
		b.within(time.Second, "gone", func() bool { return b.isGone("vol", "node") })
	})
}

// A publish that takes minutes (the EBS chart sets --timeout=6m) does not delay the detach of an attachment that is deleted: it is
// abandoned, and its effect counts as unknown. No two calls are in flight.
func TestDeletionEndsTheWaitForAPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.answers(func(ctx context.Context, c call) error {
			if c.Method == "Publish" && c.Node == "id-a" {
				return lasting(ctx, 5*time.Minute)
			}
			return lasting(ctx, time.Second)
		})
		defer b.start(func(c *Config) { c.Timeout = 6 * time.Minute })()
		b.pass(time.Second)
		b.attach("vol", "a")
		b.pass(20 * time.Second)
		b.attach("vol", "b")
		b.pass(time.Second)
		b.detach("vol", "a")
		b.within(1500*time.Millisecond, "detached", func() bool { return b.isGone("vol", "a") })
		b.within(1500*time.Millisecond, "attached elsewhere", func() bool { return b.isAttached("vol", "b") })
		if got, want := b.received("vol"), []string{"Publish id-a", "Unpublish id-a", "Publish id-b"}; !slices.Equal(got, want) {
			t.Errorf("calls %v, want %v", got, want)
		}
		if most := b.atOnce(); most > 1 {
			t.Errorf("S4: %d calls were in flight at once", most)
		}
	})
}
