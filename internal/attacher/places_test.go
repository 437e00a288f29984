package attacher

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/testing/fixture"
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

// onOneID makes Nodes for which one CSI node ID is registered.
func (b *bubble) onOneID(nodes ...string) {
	for _, node := range nodes {
		b.node(node, "id-one")
	}
}

// recordedAs says which node ID an earlier process recorded.
func recordedAs(id string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.Annotations[kube.NodeIDAnnotation] = id }
}

// Two Nodes have one CSI node ID (harvester/harvester#6981, hetznercloud/csi-driver#685). The detach from one of them must not take the shared volume
// from under the pods of the other: the last one unpublishes.
func TestTwoNodesWithOneNodeID(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.onOneID("a", "b")
		b.volume("vol", corev1.ReadWriteMany)
		b.attach("vol", "a")
		b.attach("vol", "b")
		b.within(time.Second, "both attached", func() bool { return b.isAttached("vol", "a") && b.isAttached("vol", "b") })
		if most := b.atOnce(); most > 1 {
			t.Errorf("S4: %d calls were in flight for one place", most)
		}
		b.detach("vol", "a")
		b.within(time.Second, "the first one gone", func() bool { return b.isGone("vol", "a") })
		if got := b.received("vol"); slices.Contains(got, "Unpublish id-one") {
			t.Fatalf("S2: unpublished under the pods of the other Node: %v", got)
		}
		b.detach("vol", "b")
		b.within(time.Second, "the last one gone", func() bool { return b.isGone("vol", "b") })
		if got := b.received("vol"); got[len(got)-1] != "Unpublish id-one" {
			t.Errorf("S5: the last one did not unpublish: %v", got)
		}
	})
}

// The same where a process that starts finds one attached and the other being deleted, whose node has another ID by now, and where another client
// took the finalizer off the one that stays.
func TestPlaceOfAnEarlierProcess(t *testing.T) {
	for name, stays := range map[string]func(*storagev1.VolumeAttachment){
		"protected":     attached,
		"not protected": func(va *storagev1.VolumeAttachment) { attached(va); va.Finalizers = nil },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.node("a", "id-new")
				b.node("b", "id-one")
				b.volume("vol", corev1.ReadWriteMany)
				b.attach("vol", "b", worked, recordedAs("id-one"), stays)
				b.attach("vol", "a", worked, recordedAs("id-one"), attached)
				b.pass(time.Second)
				b.detach("vol", "a")
				b.within(5*time.Second, "gone", func() bool { return b.isGone("vol", "a") })
				if got := b.received("vol"); slices.Contains(got, "Unpublish id-one") {
					t.Errorf("S2: unpublished under the pods of the other Node: %v", got)
				}
				if va := b.attachment("vol", "b"); len(va.Finalizers) == 0 {
					t.Error("S5: no finalizer protects what is published")
				}
			})
		})
	}
}

// A process takes over a detach from a node ID that the driver no longer knows since its upgrade. The finalizer's removal by the process before arrives
// late, and the volume is attached to the Node again, by its new ID. The one that is gone takes nothing from under the pods, also if the driver knows
// the old ID again, as after a rollback of the upgrade. It is forgotten: that process removed the finalizer once the driver had confirmed the detach.
func TestLateEndOfADetachFromAnEarlierID(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.knows("id-new")
		b.node("node", "id-new")
		b.volume("vol", corev1.ReadWriteMany)
		b.attach("vol", "node", worked, attached)
		b.detach("vol", "node")
		b.pass(10 * time.Millisecond)
		b.end("vol", "node")
		b.attach("vol", "node")
		b.within(10*time.Second, "attached by the new ID", func() bool { return b.isAttached("vol", "node") })
		before := len(b.received("vol"))
		b.knows("id-new", "id-node")
		b.pass(time.Hour)
		if got := b.received("vol")[before:]; len(got) > 0 {
			t.Errorf("S2: %v while the volume is attached", got)
		}
		b.detach("vol", "node")
		b.within(10*time.Minute, "detached", func() bool {
			return b.isGone("vol", "node") && len(b.attacher.calls.ofKey(publication.Key{Volume: "vol"})) == 0
		})
		if got := b.received("vol")[before:]; !slices.Equal(got, []string{"Unpublish id-new"}) {
			t.Errorf("after the detach: %v", got)
		}
	})
}

// An inline source of another tenant does not make a volume exclusive that a PersistentVolume shares: anyone who can create a pod can write one, and
// all that the volume is attached to would wait for another.
func TestInlineSourceOfAnotherTenant(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.volume("vol", corev1.ReadWriteMany)
		b.attach("vol", "a")
		b.within(time.Second, "attached", func() bool { return b.isAttached("vol", "a") })
		b.attach("vol", "tenant", func(va *storagev1.VolumeAttachment) {
			inline := fixture.PersistentVolume("vol", bubbleDriver, "vol").Spec
			va.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &inline}
		})
		b.attach("vol", "b")
		b.within(time.Second, "attached to another node", func() bool { return b.isAttached("vol", "b") })
	})
}

// A decision about one place of a shared volume looks at that place alone: with 5,000 nodes it allocates what it does with 50.
func TestDecisionOnASharedVolume(t *testing.T) {
	allocations := func(nodes int) float64 {
		var found float64
		inBubble(t, 10, func(b *bubble) {
			b.volume("vol", corev1.ReadWriteMany)
			for i := range nodes {
				b.attachedBefore("vol", fmt.Sprint("n", i))
			}
			b.pass(time.Minute)
			b.detach("vol", "n7")
			b.pass(time.Minute)
			key := b.attacher.objects.keyOf(b.attachment("vol", "n8"))
			if snap := b.attacher.observe(key); len(snap.seen.Attachments) != 1 || snap.seen.Attachments[0].Beside {
				t.Fatalf("%d attachments are looked at", len(snap.seen.Attachments))
			}
			found = testing.AllocsPerRun(20, func() { b.attacher.decide(key) })
		})
		return found
	}
	few, many := allocations(50), allocations(5000)
	t.Logf("allocations of a decision: %.0f with 50 nodes, %.0f with 5,000", few, many)
	if many > 1.5*few {
		t.Errorf("a decision with 5,000 nodes allocates %.0f times, with 50 %.0f", many, few)
	}
}

// An event of a PersistentVolume costs as much for each attachment of a shared volume, whatever number there is.
func TestVolumeEventOfASharedVolume(t *testing.T) {
	allocations := func(nodes int) float64 {
		var found float64
		inBubble(t, 10, func(b *bubble) {
			b.answers(func(context.Context, call) error { return status.Error(codes.Internal, "no") })
			b.volume("vol", corev1.ReadWriteMany)
			for i := range nodes {
				b.attach("vol", fmt.Sprint("n", i), worked)
			}
			b.pass(time.Minute)
			pv, _ := b.attacher.objects.volumes.Get("vol")
			// With what it wakes: a worker may begin before the event is through, and its allocations count too.
			found = testing.AllocsPerRun(2, func() {
				b.attacher.volumeChanged(nil, pv)
				synctest.Wait()
			})
		})
		return found / float64(nodes)
	}
	few, many := allocations(50), allocations(1000)
	t.Logf("allocations of an event per attachment: %.0f with 50 nodes, %.0f with 1,000", few, many)
	if many > 1.5*few {
		t.Errorf("an event with 1,000 nodes allocates %.0f times for each, with 50 %.0f", many, few)
	}
}
