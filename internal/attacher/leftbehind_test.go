package attacher

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"belay.dev/belay/internal/kube"
)

// blip is a driver that answers OK to unpublish while its storage does not show the instance, so that the volume stays there: EBS for 5 s,
// and Hetzner's while an attach is pending. It refuses to publish the volume elsewhere with the given code until it is detached.
func (b *bubble) blip(code codes.Code) (blind, left *atomic.Bool) {
	blind, left = new(atomic.Bool), new(atomic.Bool)
	b.answers(func(_ context.Context, c call) error {
		switch {
		case c.Method == "Unpublish" && c.Node == "id-a" && blind.Load():
			left.Store(true)
		case c.Method == "Unpublish" && c.Node == "id-a":
			left.Store(false)
		case c.Method == "Publish" && left.Load():
			return status.Error(code, "vol is already attached to an instance")
		}
		return nil
	})
	return blind, left
}

// A volume that stayed at its node although the driver confirmed the unpublish is unpublished there again when the driver refuses to
// publish it elsewhere, if no Node uses it there.
func TestConfirmedUnpublishIsRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		code    codes.Code
		arrange func(b *bubble)
		restart bool
		want    bool
	}{
		"refused as by the CSI specification": {code: codes.FailedPrecondition, want: true},
		"refused as by GCE PD":                {code: codes.InvalidArgument, want: true},
		"refused as by EBS":                   {code: codes.Internal, want: true},
		"the attacher restarted":              {code: codes.Internal, restart: true, want: true},
		"S1: the Node lists it in use": {code: codes.Internal, arrange: func(b *bubble) {
			b.realNode("a", corev1.ConditionTrue, "vol")
		}},
		"S1: the Node may list it in use": {code: codes.Internal, arrange: func(b *bubble) { b.realNode("a", corev1.ConditionUnknown) }},
		"S1: no right to read Nodes": {code: codes.Internal, arrange: func(b *bubble) {
			b.refuseNodes(apierrors.NewForbidden(corev1.Resource("nodes"), "a", errors.New("no")))
		}},
		"S1: an attachment is for that node": {code: codes.Internal, arrange: func(b *bubble) { b.attach("vol", "a") }},
		"refused because the node is full":   {code: codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				blind, left := b.blip(tt.code)
				b.realNode("a", corev1.ConditionTrue)
				stop := b.start()
				defer func() { stop() }()
				b.pass(time.Second)
				b.attach("vol", "a")
				b.within(time.Second, "attached", func() bool { return b.isAttached("vol", "a") })
				blind.Store(true)
				b.detach("vol", "a")
				b.within(time.Second, "detached", func() bool { return b.isGone("vol", "a") })
				b.attach("vol", "b")
				b.pass(10 * time.Millisecond)
				if tt.arrange != nil {
					tt.arrange(b)
				}
				b.pass(5 * time.Second)
				if b.isAttached("vol", "b") {
					t.Fatal("the driver refused nothing")
				}
				if tt.restart {
					stop()
					stop = b.start()
				}
				blind.Store(false)
				b.pass(10 * time.Minute)
				if got := b.isAttached("vol", "b"); got != tt.want || left.Load() == tt.want {
					t.Errorf("attached elsewhere: %v, want %v; calls %v", got, tt.want, b.received("vol"))
				}
			})
		})
	}
}

// One repetition comes before each attempt to publish, and the attempts back off: it costs no more than they do.
func TestConfirmedUnpublishIsRepeatedOncePerAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.realNode("a", corev1.ConditionTrue)
		b.answers(func(_ context.Context, c call) error {
			if c.Node == "id-b" {
				return status.Error(codes.Internal, "out of order")
			}
			return nil
		})
		defer b.start()()
		b.pass(time.Second)
		b.attach("vol", "a")
		b.pass(time.Second)
		b.detach("vol", "a")
		b.pass(time.Second)
		b.attach("vol", "b")
		b.pass(time.Hour)
		calls := b.received("vol")[2:]
		publishes := slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return c != "Publish id-b" })
		if len(publishes) < 15 || len(publishes) > 25 || len(calls) != 2*len(publishes)-1 {
			t.Errorf("%d calls, %d of them publishes: %v", len(calls), len(publishes), calls)
		}
		// What was a precaution keeps no detach.
		b.answers(func(_ context.Context, c call) error {
			if c.Node == "id-a" {
				return status.Error(codes.NotFound, "no such node")
			}
			return nil
		})
		b.annotate("vol", "b", "retry", "now")
		b.pass(time.Minute)
		b.detach("vol", "b")
		b.within(time.Second, "detached", func() bool { return b.isGone("vol", "b") })
	})
}

// The record is part of the request that stores the finalizer: no request more.
func TestConfirmedUnpublishIsRecordedWithTheFinalizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		defer b.start()()
		b.pass(time.Second)
		for _, node := range []string{"a", "b"} {
			b.attach("vol", node)
			b.pass(time.Second)
			if got, want := b.attachment("vol", node).Annotations[kube.UnpublishedFromAnnotation], map[string]string{"b": `[{"nodeID":"id-a","node":"a"}]`}[node]; got != want {
				t.Errorf("on %s: %q, want %q", node, got, want)
			}
			b.detach("vol", node)
			b.pass(time.Second)
		}
	})
}
