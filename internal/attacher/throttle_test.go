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
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/testing/fixture"
)

var errFull = status.Error(codes.ResourceExhausted, "node is full")

// startsOf are when the calls for a node, or for a volume, began, since a time.
func (b *bubble) startsOf(method, node, volume string, since time.Time) (starts []time.Duration) {
	for _, c := range b.driver.Calls() {
		if c.Method == method && (node == "" || c.Node == "id-"+node) && (volume == "" || c.Volume == volume) && !c.At.Before(since) {
			starts = append(starts, c.At.Sub(since))
		}
	}
	return starts
}

// attemptWithin reports whether the back-off of an attachment that is not attached ends in that time, or has ended.
func (b *bubble) attemptWithin(d time.Duration) bool {
	for _, item := range b.attacher.objects.attachmentInformer.GetStore().List() {
		va := item.(*storagev1.VolumeAttachment)
		next := b.attacher.policy.NextAttempt(string(va.UID), b.attacher.calls.of(va.UID).call)
		if !va.Status.Attached && time.Until(next) < d {
			return true
		}
	}
	return false
}

// RESOURCE_EXHAUSTED holds back the attaches to that node: one at a time, with a pause after each that fails, until one
// succeeds. Other nodes, and detaches, do not wait.
func TestFullNodeIsHeldBack(t *testing.T) {
	inBubble(t, 100, func(b *bubble) {
		const places = 10
		published := 0 // under b.mu
		b.answers(func(_ context.Context, c call) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			switch {
			case c.Node != "id-full":
			case c.Method == "Unpublish":
				published--
			case published >= places:
				return errFull
			default:
				published++
			}
			return nil
		})
		for i := range places {
			b.attach(fmt.Sprint("in", i), "full")
			synctest.Wait()
		}
		b.attach("first", "full")
		b.pass(time.Millisecond)
		begun := time.Now()
		for i := range 50 {
			b.attach(fmt.Sprint("more", i), "full")
			b.attach(fmt.Sprint("else", i), "other")
		}
		b.pass(10*time.Second - time.Millisecond)
		if n := len(b.startsOf("Publish", "other", "", begun)); n != 50 {
			t.Errorf("%d of 50 attaches to another node were tried", n)
		}
		starts := b.startsOf("Publish", "full", "", begun)
		if len(starts) < 9 || len(starts) > 10 {
			t.Errorf("attaches to the full node were tried after %v, want one each second", starts)
		}
		if f, want := b.attacher.flow(), (telemetry.Calls{Limit: 100, NodesHeld: 1, PendingAttach: 10 * time.Second}); f != want {
			t.Errorf("flow is %+v, want %+v", f, want)
		}
		// A detach makes room for one attach, immediately.
		for i := range places {
			b.detach(fmt.Sprint("in", i), "full")
		}
		b.pass(1100 * time.Millisecond)
		if room := len(b.startsOf("Publish", "full", "", begun)) - len(starts); room < places {
			t.Errorf("%d attaches were tried after %d detaches", room, places)
		}
	})
}

// A confirmed detach from a full node makes room: a volume that waits for a place there does not wait for the end of
// its back-off, which has grown to minutes. One volume is tried immediately, and one more after each pause.
func TestDetachFromAFullNodeEndsTheBackOff(t *testing.T) {
	inBubble(t, 100, func(b *bubble) {
		published := 0 // under b.mu
		b.answers(func(_ context.Context, c call) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			switch {
			case c.Node != "id-full":
				return errFull // it stays full
			case c.Method == "Unpublish":
				published--
			case published >= 2:
				return errFull
			default:
				published++
			}
			return nil
		})
		b.attach("in1", "full")
		b.attach("in2", "full")
		b.pass(time.Second)
		for i := range 4 {
			b.attach(fmt.Sprint("v", i), "full")
			b.attach(fmt.Sprint("w", i), "other")
		}
		b.pass(time.Hour)
		for b.attemptWithin(5 * time.Second) { // back-offs have a jitter, and none may end while this test looks
			b.pass(time.Second)
		}
		begun := time.Now()
		b.detach("in1", "full")
		b.pass(3500 * time.Millisecond)
		starts := b.startsOf("Publish", "full", "", begun)
		if len(starts) != 4 || starts[0] > 10*time.Millisecond {
			t.Fatalf("attaches to the node were tried after %v, want one at once and one after each second", starts)
		}
		for i := 1; i < len(starts); i++ {
			if pause := starts[i] - starts[i-1]; pause < 900*time.Millisecond {
				t.Errorf("attaches to the node were tried after %v, want a second between them", starts)
			}
		}
		if n := len(b.startsOf("Publish", "other", "", begun)); n > 0 {
			t.Errorf("%d attaches to another full node were tried", n)
		}
		attached := 0
		for i := range 4 {
			if b.isAttached(fmt.Sprint("v", i), "full") {
				attached++
			}
		}
		if attached != 1 {
			t.Errorf("%d volumes are attached to the place that became free", attached)
		}
		if n := len(b.attacher.calls.byRefusal[refusal{nodeID: "id-full", full: true}]); n != 3 {
			t.Errorf("%d volumes are noted to wait for the node, want 3", n)
		}
		for i := range 4 {
			b.detach(fmt.Sprint("v", i), "full")
		}
		b.pass(time.Minute)
		if n := len(b.attacher.calls.byRefusal[refusal{nodeID: "id-full", full: true}]); n != 0 {
			t.Errorf("%d volumes are noted to wait for the node, and none does", n)
		}
	})
}

// Each volume that a full node keeps out gets the driver's own error: kubelet acts on the code.
func TestEachVolumeOfAFullNodeGetsItsError(t *testing.T) {
	inBubble(t, 100, func(b *bubble) {
		b.answers(func(context.Context, call) error { return errFull })
		for i := range 20 {
			b.attach(fmt.Sprint("v", i), "full")
		}
		b.pass(2 * time.Minute)
		for i := range 20 {
			if va := b.attachment(fmt.Sprint("v", i), "full"); va.Status.AttachError == nil || *va.Status.AttachError.ErrorCode != int32(codes.ResourceExhausted) {
				t.Errorf("volume %d has the error %v", i, va.Status.AttachError)
			}
		}
	})
}

// ABORTED for a shared volume lets one node at a time through, until one succeeds.
func TestBusySharedVolumeIsHeldBack(t *testing.T) {
	inBubble(t, 100, func(b *bubble) {
		working := 0 // under b.mu: the driver works on one call for the volume at a time
		b.answers(func(ctx context.Context, c call) error {
			if c.Volume != "shared" {
				return nil
			}
			b.mu.Lock()
			if working > 0 {
				b.mu.Unlock()
				return status.Error(codes.Aborted, "an operation for the volume is pending")
			}
			working++
			b.mu.Unlock()
			err := lasting(ctx, 2500*time.Millisecond)
			b.mu.Lock()
			working--
			b.mu.Unlock()
			return err
		})
		b.volume("shared", corev1.ReadWriteMany)
		b.attach("shared", "node0")
		synctest.Wait()
		b.attach("shared", "node1")
		b.pass(time.Millisecond)
		begun := time.Now()
		for i := 2; i < 20; i++ {
			b.attach("shared", fmt.Sprint("node", i))
		}
		b.attach("another", "node2")
		b.pass(2 * time.Second)
		if tried := b.startsOf("Publish", "", "shared", begun); len(tried) > 2 {
			t.Errorf("tried after %v, want once a second", tried)
		}
		if !b.isAttached("another", "node2") {
			t.Error("another volume waits")
		}
		b.within(15*time.Minute, "attached to all nodes", func() bool {
			for i := range 20 {
				if !b.isAttached("shared", fmt.Sprint("node", i)) {
					return false
				}
			}
			return true
		})
	})
}

// Volumes that are woken together are tried in the order of the queue, however many workers there are: here all that wait for a full node
// to register.
func TestCallsBeginInTheOrderOfTheQueue(t *testing.T) {
	inBubble(t, 100, func(b *bubble) {
		b.answers(func(context.Context, call) error { return errFull })
		protected := func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{kube.AttacherFinalizer(bubbleDriver)} }
		for round := range 30 {
			node := fmt.Sprint("full", round)
			var names []string
			for i := range 8 {
				volume := fmt.Sprint("v", round, "-", i)
				b.persistentVolume(volume, volume, protected)
				va := fixture.Attachment(bubbleName(volume, node), bubbleDriver, node, volume)
				worked(va)
				va.Annotations[kube.PublishedHandleAnnotation] = volume
				b.api.put(resourceAttachments, va)
				names = append(names, va.Name)
			}
			b.attacher.throttle.end(time.Now(), attempt{node: node, verb: publication.Publish}, errFull)
			b.pass(2 * time.Second)
			begun := time.Now()
			b.node(node, "id-"+node)
			synctest.Wait()
			called := b.driver.Calls()
			first := called[len(called)-1]
			if n := len(b.startsOf("Publish", node, "", begun)); n != 1 || bubbleName(first.Volume, node) != slices.Min(names) {
				t.Fatalf("round %d: %d calls, the last one for %s, want one for the first of %v", round, n, bubbleName(first.Volume, node), names)
			}
		}
	})
}

// Volumes that wait for one full node are tried in turn, whatever their UIDs, how often they failed before, and how many come later.
func TestHeldCallsAreTriedInTurn(t *testing.T) {
	const pause, old, late, day = time.Second, 15, 15, 24 * time.Hour
	type volume struct {
		uid        string
		call       publication.Call
		due, tried time.Time
		longest    time.Duration
	}
	policy, h := publication.Policy{RetryStart: pause, RetryMax: 10 * pause}, newThrottle(pause)
	begun := time.Now()
	var volumes []*volume
	for i := range old + late {
		v := &volume{uid: fmt.Sprint("uid-", i), due: begun, tried: begun}
		if i >= old {
			v.due = begun.Add(day / 2)
			v.tried = v.due
		}
		volumes = append(volumes, v)
	}
	for {
		v := slices.MinFunc(volumes, func(a, b *volume) int { return a.due.Compare(b.due) })
		now := v.due
		if now.Sub(begun) > day {
			break
		}
		try := attempt{key: publication.Key{Volume: v.uid}, uid: types.UID(v.uid), node: "full", verb: publication.Publish, waitsSince: v.tried}
		if no := h.wait(now, try); no.reason != "" {
			v.due = no.until
			continue
		}
		if !h.begin(now, try) {
			t.Fatal("a call that need not wait may not begin")
		}
		h.end(now, try, errFull)
		v.longest, v.tried = max(v.longest, now.Sub(v.tried)), now
		v.call = v.call.Begin(publication.Publish, "id-full", "", false).Fail(now, "full", false)
		v.due = policy.NextAttempt(v.uid, v.call)
	}
	for _, v := range volumes {
		if longest := max(v.longest, begun.Add(day).Sub(v.tried)); longest > 2*(old+late)*pause {
			t.Errorf("%s was not tried for %v", v.uid, longest)
		}
	}
}

// One call is allowed after each pause, also if the previous one hangs.
func TestThrottleAllowsOneCallPerPause(t *testing.T) {
	h, now := newThrottle(time.Second), time.Now()
	on := func(volume string) attempt {
		return attempt{key: publication.Key{Volume: volume}, volume: identity{handle: volume}, node: "full", verb: publication.Publish}
	}
	for _, volume := range []string{"a", "b"} {
		if !h.begin(now, on(volume)) {
			t.Fatalf("%s waits", volume)
		}
	}
	h.end(now, on("a"), errFull)
	if no := h.wait(now, on("c")); no.reason != publication.NodeHeldBack || no.until.Before(now.Add(time.Second)) || no.until.After(now.Add(1210*time.Millisecond)) {
		t.Errorf("refused with %+v, want a hold of 1 to 1.21 s", no)
	}
	now = now.Add(time.Second)
	if !h.begin(now, on("c")) {
		t.Fatal("nothing is let through after the pause")
	}
	if h.begin(now, on("d")) {
		t.Error("two calls without a pause")
	}
	h.end(now.Add(time.Second/2), on("b"), errFull)
	if now = now.Add(time.Second); h.begin(now, on("d")) {
		t.Error("no pause after the driver said again that the node is full")
	}
	if now = now.Add(time.Second); !h.begin(now, on("d")) {
		t.Error("d waits for c, which hangs")
	}
	h.end(now, on("d"), nil)
	for _, volume := range []string{"e", "f"} {
		if !h.begin(now, on(volume)) {
			t.Errorf("%s waits although one has succeeded", volume)
		}
	}
}

// A volume that is detached from a full node makes room: attaches to it wait no longer. A detach that fails makes none.
func TestDetachEndsTheHold(t *testing.T) {
	h, now := newThrottle(time.Second), time.Now()
	publish := attempt{key: publication.Key{Volume: "a"}, volume: identity{handle: "a"}, node: "full", verb: publication.Publish}
	unpublish := attempt{key: publication.Key{Volume: "b"}, volume: identity{handle: "b"}, node: "full", verb: publication.Unpublish}
	h.end(now, publish, errFull)
	if !h.begin(now, unpublish) {
		t.Fatal("a detach waits for a full node")
	}
	h.end(now, unpublish, status.Error(codes.Internal, "broken"))
	if h.begin(now, publish) {
		t.Error("a detach that failed ended the hold")
	}
	h.end(now, unpublish, nil)
	if no := h.wait(now, publish); no != (callDelay{}) {
		t.Errorf("after the detach: %+v", no)
	}
}

// A hold without a remaining request is forgotten.
func TestHoldsAreForgotten(t *testing.T) {
	h, now := newThrottle(time.Second), time.Now()
	for i := range 50 {
		h.end(now, attempt{key: publication.Key{Volume: "v"}, node: fmt.Sprint("n", i), verb: publication.Publish}, errFull)
	}
	now = now.Add(2 * throttleExpiry)
	h.end(now, attempt{key: publication.Key{Volume: "v"}, node: "last", verb: publication.Publish}, errFull)
	if len(h.held) != 1 {
		t.Errorf("%d nodes are held back, want 1", len(h.held))
	}
}
