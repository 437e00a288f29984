package attacher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/testing/wait"
)

// S1: B waits while A exists, reports so, and continues without help when A is gone.
func TestExclusiveVolumeMovesOnlyWhenFree(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1")
	w.start()
	a := w.attachment("pv1", "node-a")
	w.until(a, "attached", isAttached)
	b := w.attachment("pv1", "node-b")
	stored := w.until(b, "waiting", hasAttachError("still exists"))
	if len(stored.Finalizers) != 0 {
		t.Errorf("finalizers %v on an attachment that waits", stored.Finalizers)
	}
	w.wantCalls("Publish id-node-a")
	w.delete(a)
	if stored = w.until(b, "attached", isAttached); stored.Status.AttachError != nil {
		t.Errorf("attachError %q was not cleared", stored.Status.AttachError.Message)
	}
	w.wantCalls("Publish id-node-a", "Unpublish id-node-a", "Publish id-node-b")
}

// S1, S4: while A's unpublish hangs or fails, B gets no call and can be deleted.
func TestExclusiveVolumeWhoseUnpublishNeverSucceeds(t *testing.T) {
	w := newWorld(t)
	free := make(chan struct{})
	w.driver.SetAnswer(func(ctx context.Context, c call, nth int) (map[string]string, error) {
		if c.Method == "Unpublish" {
			select {
			case <-free:
				return nil, nil
			default:
			}
			if nth%2 == 0 {
				return nil, status.Error(codes.Internal, "array is away")
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	})
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1")
	w.start(func(c *Config) { c.Timeout = 2 * time.Second }) // long enough for what is answered at once
	a := w.attachment("pv1", "node-a")
	w.until(a, "attached", isAttached)
	w.delete(a)
	b := w.attachment("pv1", "node-b")
	w.until(b, "waiting", hasAttachError("still exists"))
	w.until(a, "failing", hasDetachError("array is away"))
	w.driver.WaitCalls(5)
	if slices.Contains(w.driver.Made(), "Publish id-node-b") {
		t.Fatalf("published to B while A may hold it: %v", w.driver.Made())
	}
	w.delete(b) // B is deleted: nothing of it stays
	w.until(b, "gone", isGone)
	b = w.attachment("pv1", "node-b")
	close(free)
	w.until(b, "attached", isAttached)
	if w.driver.Overlaps != 0 {
		t.Errorf("%d calls overlapped on the volume", w.driver.Overlaps)
	}
}

// Two attachments are created at the same time: one of them is published first, regardless of who created it.
func TestExclusiveVolumeWantedTwiceAtOnce(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1")
	names := []string{w.attachment("pv1", "node-a"), w.attachment("pv1", "node-b")}
	w.start()
	var all []*storagev1.VolumeAttachment
	for _, name := range names {
		all = append(all, w.until(name, "decided", func(va *storagev1.VolumeAttachment) bool {
			return isAttached(va) || hasAttachError("still exists")(va)
		}))
	}
	if all[0].Status.Attached == all[1].Status.Attached {
		t.Errorf("attached: %v and %v, want one", all[0].Status.Attached, all[1].Status.Attached)
	}
	if n := len(w.driver.Made()); n != 1 {
		t.Errorf("calls: %v, want one", w.driver.Made())
	}
}

// Two PersistentVolumes of one handle are one volume, and it is exclusive if one of them is.
func TestTwoPersistentVolumesOfOneHandle(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1")
	w.volume("pv2", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.VolumeHandle = w.name("pv1")
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.start()
	w.until(w.attachment("pv1", "node-a"), "attached", isAttached)
	w.until(w.attachmentOf("pv2", w.name("pv1"), "node-b"), "waiting", hasAttachError("still exists"))
	w.wantCalls("Publish id-node-a")
}

// A shared volume is attached to many nodes at the same time; a node whose call hangs does not block the others.
func TestSharedVolumeOneNodeHangs(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(func(ctx context.Context, c call, _ int) (map[string]string, error) {
		if c.Node == "id-node-a" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	})
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.start(func(c *Config) { c.WorkerThreads, c.DrainTimeout = 2, 0 })
	w.attachment("pv1", "node-a")
	w.driver.WaitCalls(1)
	w.until(w.attachment("pv1", "node-b"), "attached", isAttached)
}

// Volumes that hang occupy one call each, and healthy volumes share the remaining calls. (Of five calls, one is for
// volumes that have hung before.)
func TestHungVolumesHoldOnlyTheirSlots(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	hung := map[string]bool{}
	w.driver.SetAnswer(func(ctx context.Context, c call, _ int) (map[string]string, error) {
		mu.Lock()
		hangs := hung[c.Volume]
		mu.Unlock()
		if hangs {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	})
	w.node("node1")
	for i := range 3 {
		hung[w.name(fmt.Sprint("bad", i))] = true
		w.volume(fmt.Sprint("bad", i))
	}
	for i := range 10 {
		w.volume(fmt.Sprint("good", i))
	}
	w.start(func(c *Config) { c.WorkerThreads, c.Timeout, c.DrainTimeout = 5, wait.Timeout, 0 })
	for i := range 3 {
		w.attachment(fmt.Sprint("bad", i), "node1")
	}
	w.driver.WaitCalls(3)
	var names []string
	for i := range 10 {
		names = append(names, w.attachment(fmt.Sprint("good", i), "node1"))
	}
	for _, name := range names {
		w.until(name, "attached", isAttached)
	}
	w.wantNoDoubles()
}

// wantNoDoubles checks that no volume was published twice.
func (w *world) wantNoDoubles() {
	w.t.Helper()
	seen := map[string]int{}
	for _, c := range w.driver.Calls() {
		if c.Method == "Publish" {
			seen[c.Volume+" "+c.Node]++
		}
	}
	for what, n := range seen {
		if n > 1 {
			w.t.Errorf("%s published %d times", what, n)
		}
	}
}

// An attachment made again under its old name is another one: nothing known of
// the first is carried over, and a patch for the first does not reach it (S6).
func TestAttachmentMadeAgainStartsFresh(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(failing("Publish", 2, status.Error(codes.InvalidArgument, "no")))
	w.node("node1")
	w.volume("pv1")
	w.start(func(c *Config) { c.RetryStart, c.RetryMax = 1e9*3600, 1e9*3600 })
	va := w.attachment("pv1", "node1")
	w.until(va, "failed", hasAttachError("no"))
	w.delete(va)
	w.until(va, "gone", isGone)
	va = w.attachment("pv1", "node1")
	w.until(va, "failed", hasAttachError("no"))
	w.delete(va)
	w.until(va, "gone", isGone)
	w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.wantCalls("Publish id-node1", "Unpublish id-node1", "Publish id-node1", "Unpublish id-node1", "Publish id-node1")
}

// S6: a patch decided on one object is refused by another of the same name.
func TestPatchesCarryTheUID(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	name := w.attachment("pv1", "node1")
	a, err := New(Config{Client: w.client, Driver: w.driver.Name, WorkerThreads: 1, Controller: w.controller()})
	must(t, err)
	before := w.get(name)
	stale := before.DeepCopy()
	stale.UID = "another"
	one := &subject{attachment: stale}
	one.seen.UID = "another"
	pv := csiPV(w, "pv1")
	pv.UID = "another"
	for what, write := range map[string]func(context.Context) error{
		"finalizer":        func(ctx context.Context) error { return a.protectAttachment(ctx, one, "id") },
		"volume finalizer": func(ctx context.Context) error { return a.protectVolume(ctx, pv) },
		"status":           func(ctx context.Context) error { return a.writeStatus(ctx, stale, attachedPatch(stale, nil)) },
		"finalizer off":    func(ctx context.Context) error { return a.removeFinalizer(ctx, one) },
	} {
		if err := write(t.Context()); err == nil {
			t.Errorf("%s: the patch reached an object of another UID", what)
		}
	}
	w.wantUnchanged(before)
}
