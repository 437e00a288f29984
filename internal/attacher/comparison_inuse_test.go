package attacher

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"belay.dev/belay/internal/publication"
)

// listing puts an array behind the driver that refuses what another node holds.
func (b *bubble) listing() *array {
	b.driver.ControllerServices = canList
	s := attachArray(b.driver)
	b.answers(func(_ context.Context, c call) error {
		if c.Method == "Publish" && s.heldElsewhere(c.Volume, c.Node) {
			return status.Error(codes.FailedPrecondition, "held by another node")
		}
		s.serve(c)
		return nil
	})
	return s
}

func everyMinute(c *Config) { c.ReconcileSync = time.Minute }

// S2: etcd was restored to before the move of a pod from x to y, and the pod moves on to z. Nothing in the API tells any more that y has the
// volume, except y's kubelet.
func TestAbandonedAfterARestoreOfEtcd(t *testing.T) {
	const freed, left, held = "freed", "left", "not unpublished there: "
	forbidden := apierrors.NewForbidden(corev1.Resource("nodes"), "y", errors.New("no"))
	for name, tt := range map[string]struct {
		arrange func(b *bubble)
		later   func(b *bubble) // after a list and a half
		want    string
		message string
	}{
		"y's kubelet lists it":             {arrange: func(b *bubble) { b.realNode("y", corev1.ConditionTrue, "v") }, want: left, message: held + `Node "y" lists it in use`},
		"y's kubelet does not list it":     {arrange: func(b *bubble) { b.realNode("y", corev1.ConditionTrue) }, want: freed},
		"y's kubelet has reported it late": {arrange: func(b *bubble) { b.realNode("y", corev1.ConditionTrue) }, later: func(b *bubble) { b.realNode("y", corev1.ConditionTrue, "v") }, want: left, message: held},
		"y's kubelet no longer lists it":   {arrange: func(b *bubble) { b.realNode("y", corev1.ConditionTrue, "v") }, later: func(b *bubble) { b.realNode("y", corev1.ConditionTrue) }, want: freed},
		"y is cut off":                     {arrange: func(b *bubble) { b.realNode("y", corev1.ConditionUnknown) }, want: left, message: held + `Node "y" is not Ready`},
		"y's Node is gone":                 {arrange: func(*bubble) {}, want: freed},
		"another Node with y's ID lists it": {arrange: func(b *bubble) {
			b.node("twin", "id-y")
			b.realNode("twin", corev1.ConditionTrue, "v")
			b.realNode("y", corev1.ConditionTrue)
		}, want: left, message: held + `Node "twin" lists it in use`},
		"the right to read Nodes is missing": {arrange: func(b *bubble) {
			b.realNode("y", corev1.ConditionTrue)
			b.refuseNodes(forbidden)
		}, want: left, message: "needs the verb get on nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				s := b.listing()
				s.put("v", "id-y")
				b.node("y", "id-y")
				tt.arrange(b)
				defer b.start(everyMinute)()
				b.pass(10 * time.Second) // the first list is over
				b.attach("v", "z")
				b.pass(80 * time.Second)
				if tt.later != nil {
					tt.later(b)
				}
				b.pass(10 * time.Minute)
				if got := b.isAttached("v", "z"); got != (tt.want == freed) || slices.Contains(b.received("v"), "Unpublish id-y") != got {
					t.Errorf("calls %q, want y %s", b.received("v"), tt.want)
				}
				message := ""
				if failed := b.attachment("v", "z").Status.AttachError; failed != nil {
					message = failed.Message
				}
				if !strings.Contains(message, tt.message) || tt.want == left && !strings.HasPrefix(message, "rpc error: code = FailedPrecondition desc = held by another node; ") {
					t.Errorf("attachError %q, want %q", message, tt.message)
				}
				lines := b.log.of("The driver lists the volume as published to a node that no VolumeAttachment is for, not unpublishing it there")
				if tt.want == left && (len(lines) != 1 || lines[0]["publishedAt"] != "id-y" || !strings.Contains(lines[0]["reason"].(string), tt.message)) {
					t.Errorf("logged %v", lines)
				}
			})
		})
	}
}

// A look at the Nodes counts for a while: if the unpublish cannot be sent in that time, the next comparison looks again.
func TestAbandonedByAnOldLookIsNotUnpublished(t *testing.T) {
	for name, tt := range map[string]struct {
		age  time.Duration
		want bool
	}{"fresh": {0, true}, "old": {unusedFor + time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.answers(func(_ context.Context, c call) error {
					if c.Method == "Publish" {
						return status.Error(codes.FailedPrecondition, "held by another node")
					}
					return nil
				})
				b.attach("v", "z")
				b.pass(time.Second)
				va := b.attachment("v", "z")
				b.attacher.recordDrift(publication.ExpectedAttachment{Attachment: publication.Attachment{UID: string(va.UID), Name: va.Name, Node: "z"}},
					publication.Abandoned, "id-y", time.Now().Add(-tt.age))
				b.pass(10 * time.Second)
				if got := slices.Contains(b.received("v"), "Unpublish id-y"); got != tt.want {
					t.Errorf("unpublished: %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// A publish got no answer and took effect later; the driver refuses to repeat it (kubernetes/cloud-provider-openstack#3124,
// harvester/harvester#10889). The driver's list ends that.
func TestPublishThatTookEffectWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		s := b.listing()
		b.answers(func(ctx context.Context, c call) error {
			switch first := len(b.received("v")) == 1; {
			case c.Method == "Publish" && first:
				time.AfterFunc(3*time.Minute, func() { s.put("v", c.Node) })
				return unanswered(ctx)
			case c.Method == "Publish" && !slices.Contains(b.received("v"), "Unpublish id-n"):
				return status.Error(codes.Internal, "volume with that name already exists")
			}
			s.serve(c)
			return nil
		})
		b.attach("v", "n")
		defer b.start(everyMinute)()
		b.within(15*time.Minute, "attached", func() bool { return b.isAttached("v", "n") })
		calls := slices.Compact(b.received("v"))
		if want := []string{"Publish id-n", "Unpublish id-n", "Publish id-n"}; !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
	})
}

// S5: the driver answers NOT_FOUND to an unpublish forever. The finalizer is removed if its lists show other volumes, and this one nowhere.
func TestUnpublishAnsweredNotFound(t *testing.T) {
	for name, tt := range map[string]struct {
		other bool   // a volume that is listed
		at    string // the node ID that the volume stays at
		want  bool
	}{
		"listed nowhere":           {other: true, want: true},
		"listed":                   {other: true, at: "id-n"},
		"listed at an unknown ID":  {other: true, at: "what"},
		"nothing is listed at all": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				s := b.listing()
				s.put("v", tt.at)
				b.answers(func(_ context.Context, c call) error {
					if c.Method == "Unpublish" {
						return status.Error(codes.NotFound, "no such instance")
					}
					s.serve(c)
					return nil
				})
				if tt.other {
					b.attach("other", "m")
				}
				b.attachedBefore("v", "n")
				b.detach("v", "n")
				defer b.start(everyMinute)()
				b.pass(9 * time.Minute)
				if b.isGone("v", "n") {
					t.Error("released before the time")
				}
				b.pass(11 * time.Minute)
				if got := b.isGone("v", "n"); got != tt.want {
					t.Errorf("released: %v, want %v", got, tt.want)
				}
				if lines := b.log.of(disagreements[publication.Vanished]); (len(lines) == 1) != tt.want {
					t.Errorf("logged %v", lines)
				}
			})
		})
	}
}
