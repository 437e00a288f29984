package attacher

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// An attacher takes over a detach whose finalizer the one before is about to remove: that one was confirmed the unpublish. The driver has called the machine
// otherwise since, and knows no such node. Liveness: the volume is attached to the Node again. S1, S5: it is not where another client has removed the
// finalizer, or where this process has published the volume itself.
func TestDetachThatTheProcessBeforeHasEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		after    time.Duration // from the start to the removal of the finalizer
		own      bool          // the volume was attached by this process
		code     codes.Code
		attached bool
	}{
		"a write of that process":     {10 * time.Second, false, codes.NotFound, true},
		"before the first answer":     {500 * time.Millisecond, false, codes.NotFound, true},
		"another client's write":      {lateWrites + time.Second, false, codes.NotFound, false},
		"attached by this process":    {20 * time.Second, true, codes.NotFound, false},
		"the driver may have it":      {10 * time.Second, false, codes.Internal, false},
		"and does not answer at once": {10 * time.Second, false, codes.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.answers(func(ctx context.Context, c call) error {
					if c.Node != "id-n" || c.Method == "Publish" {
						return nil
					}
					return errorsAfter(ctx, time.Second, status.Error(tt.code, "no such node"))
				})
				if !tt.own {
					b.node("n", "id-n@2")
					b.attach("v", "n", worked, attached, func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = new(metav1.Now()) })
				}
				defer b.start()()
				if tt.own {
					b.attach("v", "n")
					b.within(5*time.Second, "attached", func() bool { return b.isAttached("v", "n") })
					b.detach("v", "n")
					b.node("n", "id-n@2")
				}
				b.pass(tt.after)
				b.end("v", "n")
				b.attach("v", "n")
				b.pass(time.Hour)
				if b.isAttached("v", "n") != tt.attached {
					t.Errorf("attached: %t; calls %v", !tt.attached, b.received("v"))
				}
				calls := b.received("v")
				if at := slices.Index(calls, "Publish id-n@2"); at >= 0 && slices.Contains(calls[at:], "Unpublish id-n") {
					t.Errorf("S2: unpublished by the earlier node ID under the mount: %v", calls)
				}
			})
		})
	}
}

// errorsAfter is a driver that takes so long for an error.
func errorsAfter(ctx context.Context, d time.Duration, err error) error {
	if late := lasting(ctx, d); late != nil {
		return late
	}
	return err
}

// The same for a volume that the Node has again already: the attachment that is gone is forgotten, and waits for nothing.
func TestDetachThatTheProcessBeforeHasEndedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.volume("v", "ReadWriteMany")
		b.node("n", "id-n@2")
		b.answers(func(_ context.Context, c call) error {
			if c.Node == "id-n" {
				return status.Error(codes.NotFound, "no such node")
			}
			return nil
		})
		b.attach("v", "n", worked, attached, func(va *storagev1.VolumeAttachment) {
			va.DeletionTimestamp, va.Annotations[kube.NodeIDAnnotation] = new(metav1.Now()), "id-n"
		})
		defer b.start()()
		b.pass(5 * time.Second)
		b.end("v", "n")
		b.attach("v", "n")
		b.within(time.Minute, "attached", func() bool { return b.isAttached("v", "n") })
		b.detach("v", "n")
		b.within(time.Minute, "detached", func() bool { return b.isGone("v", "n") })
		before := len(b.received("v"))
		if b.pass(time.Hour); len(b.received("v")) > before {
			t.Errorf("calls go on: %v", b.received("v")[before:])
		}
	})
}
