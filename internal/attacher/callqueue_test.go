package attacher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// --worker-threads is never exceeded, also when calls hang.
func TestCallsInFlightAreBounded(t *testing.T) {
	for _, bound := range []int{1, 2, 3, 10} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			inBubble(t, bound, func(b *bubble) {
				b.answers(func(ctx context.Context, _ call) error { return unanswered(ctx) })
				for i := range 3 * bound {
					b.attach(fmt.Sprint("v", i), "node1")
				}
				for range 10 { // also when all of them have hung before
					b.pass(20 * time.Second)
					if most := b.atOnce(); most != bound {
						b.t.Fatalf("%d calls were in flight at once, want %d", most, bound)
					}
				}
			})
		})
	}
}

// slowly is a driver that takes two seconds for a detach and one for an attach, and does not answer for volumes whose name
// begins with "hung".
func slowly(ctx context.Context, c call) error {
	switch {
	case strings.HasPrefix(c.Volume, "hung"):
		return unanswered(ctx)
	case c.Method == "Unpublish":
		return lasting(ctx, 2*time.Second)
	default:
		return lasting(ctx, time.Second)
	}
}

// As shipped, a healthy volume waits neither for those that hang nor for those that are detached: for the latter, at most
// until one of the calls in flight ends.
func TestHealthyVolumeBesideTrouble(t *testing.T) {
	tests := map[string]struct {
		hang, detach int
		before       time.Duration // how long the ones hang before the others are detached
		within       time.Duration
	}{
		"none":                             {0, 0, 0, time.Second},
		"hanging and detaching at once":    {150, 40, 0, time.Second},
		"hanging for a second":             {150, 40, time.Second, time.Second},
		"hanging for half a minute":        {150, 100, 30 * time.Second, time.Second},
		"hanging for an hour":              {150, 100, time.Hour, time.Second},
		"more hang than there are workers": {500, 0, time.Hour, time.Second},
		"a storm of detaches":              {0, 2000, 0, 3 * time.Second},
		"a storm beside those that hang":   {150, 2000, time.Hour, 3 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, defaultWorkerThreads, func(b *bubble) {
				b.answers(slowly)
				for i := range tt.detach {
					b.attachedBefore(fmt.Sprint("gone", i), "node1")
				}
				for i := range tt.hang {
					b.attach(fmt.Sprint("hung", i), "node1")
				}
				b.pass(tt.before)
				for i := range tt.detach {
					b.detach(fmt.Sprint("gone", i), "node1")
				}
				for n := range 10 { // at any moment
					b.pass(130 * time.Millisecond)
					healthy := fmt.Sprint("healthy", n)
					b.attach(healthy, "node1")
					b.within(tt.within, "healthy volume attached", func() bool { return b.isAttached(healthy, "node1") })
				}
				if most := b.atOnce(); most > defaultWorkerThreads {
					t.Errorf("%d calls were in flight at once", most)
				}
			})
		})
	}
}

// Volumes that hang, and attaches that never finish, do not slow down detaches: these proceed at the driver's pace.
func TestDetachesBesideHungVolumes(t *testing.T) {
	inBubble(t, defaultWorkerThreads, func(b *bubble) {
		b.answers(slowly)
		for i := range 150 {
			b.attachedBefore(fmt.Sprint("gone", i), "node1")
			b.attach(fmt.Sprint("hung", i), "node1")
		}
		b.pass(time.Minute)
		for i := range 150 {
			b.detach(fmt.Sprint("gone", i), "node1")
		}
		b.within(2*time.Second, "150 volumes detached", func() bool {
			for i := range 150 {
				if !b.isGone(fmt.Sprint("gone", i), "node1") {
					return false
				}
			}
			return true
		})
	})
}

// While both attaches and detaches are queued, one of four calls is a detach.
func TestDetachesKeepTheirShareOfCalls(t *testing.T) {
	inBubble(t, 8, func(b *bubble) {
		b.answers(func(ctx context.Context, _ call) error { return lasting(ctx, time.Second) })
		for i := range 100 {
			b.attachedBefore(fmt.Sprint("out", i), "node1")
			b.attach(fmt.Sprint("in", i), "node1")
		}
		synctest.Wait()
		for i := range 100 {
			b.detach(fmt.Sprint("out", i), "node1")
		}
		b.pass(15 * time.Second)
		detached := 0
		calls := b.received("")
		for _, c := range calls {
			if strings.HasPrefix(c, "Unpublish") {
				detached++
			}
		}
		if low, high := len(calls)/5, len(calls)/3; detached < low || detached > high {
			t.Errorf("%d of %d calls were detaches, want about a quarter", detached, len(calls))
		}
	})
}

// A detach that an attach of the volume waits for is as urgent as an attach.
func TestMoveBesideAStormOfDetaches(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.answers(slowly)
		b.attachedBefore("moves", "node1")
		for i := range 500 {
			b.attachedBefore(fmt.Sprint("gone", i), "node1")
		}
		synctest.Wait()
		for i := range 500 {
			b.detach(fmt.Sprint("gone", i), "node1")
		}
		synctest.Wait()
		b.detach("moves", "node1")
		b.attach("moves", "node2")
		b.within(8*time.Second, "moved", func() bool { return b.isAttached("moves", "node2") }) // two calls, for two others each
	})
}

// The API server's answers are as slow as they are, in a storm of detaches, for an attach too: but it does not wait for all
// of theirs.
func TestAttachBesideDetachesThatTheAPIServerIsSlowFor(t *testing.T) {
	inBubble(t, defaultWorkerThreads, func(b *bubble) {
		for i := range 2000 {
			b.attachedBefore(fmt.Sprint("gone", i), "node1")
		}
		synctest.Wait()
		b.slow(time.Second)
		for i := range 2000 {
			b.detach(fmt.Sprint("gone", i), "node1")
		}
		b.pass(time.Second)
		b.attach("wanted", "node1")
		b.within(5*time.Second, "attached", func() bool { return b.isAttached("wanted", "node1") }) // two writes, for two others each
	})
}

// A volume whose call hung continues without help once the driver responds again.
func TestHungVolumeRecovers(t *testing.T) {
	for _, bound := range []int{1, 2} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			inBubble(t, bound, func(b *bubble) {
				b.answers(func(ctx context.Context, _ call) error { return unanswered(ctx) })
				b.attach("slow", "node1")
				b.pass(time.Minute)
				b.answers(func(context.Context, call) error { return nil })
				b.within(time.Minute, "volume that hung is attached", func() bool { return b.isAttached("slow", "node1") })
			})
		})
	}
}

// A volume that waits for a call slot reports so, and the calls in flight are counted.
func TestFlow(t *testing.T) {
	inBubble(t, 8, func(b *bubble) {
		b.answers(slowly)
		for i := range 10 {
			b.attach(fmt.Sprint("hung", i), "node1")
		}
		b.attachedBefore("gone", "node1")
		b.detach("gone", "node1")
		b.pass(20 * time.Second) // eight have hung and two of them are called again, two hang for the first time
		want := telemetry.Calls{Limit: 8, Attaching: 4, Unanswered: 2, PendingAttach: 20 * time.Second}
		if got := b.attacher.flow(); got != want {
			t.Errorf("flow is %+v, want %+v", got, want)
		}
	})
}

// A volume that is no longer wanted when its turn comes is not called for.
func TestQueuedCallIsDecidedAgainBeforeItIsSent(t *testing.T) {
	inBubble(t, 1, func(b *bubble) {
		b.answers(func(ctx context.Context, _ call) error { return lasting(ctx, 5*time.Second) })
		b.attach("first", "node1")
		synctest.Wait()
		b.attach("second", "node1")
		b.pass(time.Second)
		b.detach("second", "node1")
		b.pass(20 * time.Second)
		if got := b.received("second"); slices.Contains(got, "Publish id-node1") || !b.isGone("second", "node1") {
			t.Errorf("the driver received %v for a volume that was released before its turn, gone %v", got, b.isGone("second", "node1"))
		}
	})
}

// While a decision about a volume is being written, no call starts for it on another decision, and the call that is due
// is not forgotten.
func TestNoCallWhileADecisionIsBeingApplied(t *testing.T) {
	inBubble(t, 1, func(b *bubble) {
		b.answers(func(ctx context.Context, c call) error {
			if c.Volume == "other" {
				return lasting(ctx, 5*time.Second)
			}
			return nil
		})
		b.attachedBefore("v", "node1")
		b.attach("other", "node1")
		synctest.Wait()
		begun := time.Now()
		b.detach("v", "node1") // waits for its turn
		b.pass(4500 * time.Millisecond)
		b.slow(time.Second)
		b.attach("v", "node2") // has its error written from 4.5 s to 5.5 s; at 5 s it is the turn of the detach
		b.within(10*time.Second, "moved", func() bool { return b.isAttached("v", "node2") })
		if at := b.startsOf("Unpublish", "node1", "v", begun); len(at) != 1 || at[0] < 5500*time.Millisecond {
			t.Errorf("detached after %v, want once, after 5.5s", at)
		}
	})
}

// A finished call is followed by one decision: workCalls enqueues its key, and call another one only if the volume's key has changed.
func TestFinishedCallEnqueuesOnlyAChangedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		clean := b.create()
		defer clean()
		warm, cold := context.WithCancel(t.Context())
		defer cold()
		a := b.attacher
		defer a.shutDown()
		a.Warm(warm)
		b.attach("v", "node", worked, func(va *storagev1.VolumeAttachment) { va.Annotations[kube.PublishedHandleAnnotation] = "v" })
		b.pass(time.Second)
		for _, tt := range []struct {
			key  publication.Key
			want int
		}{{publication.Key{Volume: "v"}, 0}, {publication.Key{Volume: "v", NodeID: "id-node"}, 1}} {
			subj := a.observe(publication.Key{Volume: "v"}).subjects[string(b.attachment("v", "node").UID)]
			step := publication.CallDriver{Verb: publication.Publish, NodeID: "id-node"}
			try := attemptOf(tt.key, subj, step)
			a.running.Store(true)
			a.calls.begin(try, func() bool { return false })
			a.call(t.Context(), subj, step, try)
			if n := a.queue.Len(); n != tt.want {
				t.Errorf("after a call for %v %d keys are queued, want %d", tt.key, n, tt.want)
			}
		}
	})
}

// A call that has been in flight for 30 s counts as hanging, and up to a quarter of the bound may hang beside it: where the driver's charts allow six
// minutes for a call, stuck attaches delay a healthy volume for 30 s.
func TestStuckCallsLeaveTheBound(t *testing.T) {
	tests := map[string]struct {
		bound, stuck int
		within       time.Duration
		most         int // calls in flight at once
	}{
		"more than there are calls":  {100, 105, 31 * time.Second, 106}, // 100, and at 30 s the other five and the healthy one
		"few":                        {100, 20, time.Second, 21},
		"many more":                  {100, 124, 31 * time.Second, 125},
		"a bound of one is kept":     {1, 1, 5 * time.Minute, 1},
		"a bound of four has one":    {4, 4, 31 * time.Second, 5},
		"not more than a quarter is": {100, 1000, 10 * time.Minute, 125},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, func(c *Config) { c.WorkerThreads, c.Timeout = tt.bound, 6*time.Minute }, func(b *bubble) {
				b.answers(slowly)
				for i := range tt.stuck {
					b.attach(fmt.Sprint("hung", i), fmt.Sprint("node", i))
				}
				b.pass(time.Second)
				b.attach("healthy", "node1")
				b.pass(tt.within)
				if attached, want := b.isAttached("healthy", "node1"), tt.within < time.Minute; attached != want {
					t.Errorf("attached after %v: %v, want %v", tt.within, attached, want)
				}
				if most := b.atOnce(); most != tt.most {
					t.Errorf("%d calls were in flight at once, want %d", most, tt.most)
				}
			})
		})
	}
}

// A call that ends gives its place back once, whether it hung or not.
func TestLimiterCountsEachCallOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(4)
		for range 100 {
			end := [5]func(){}
			for i := range 4 {
				end[i] = l.begin()
			}
			if l.free() {
				t.Fatal("a fifth call would begin beside four")
			}
			time.Sleep(hangsAfter + time.Second)
			end[4] = l.begin()
			if l.free() {
				t.Fatal("a sixth call would begin beside five that hang or will")
			}
			for _, f := range end {
				f()
			}
		}
		if !l.free() || l.inFlight != 0 || l.hanging != 0 {
			t.Errorf("%d calls in flight, %d hanging, and none is", l.inFlight, l.hanging)
		}
	})
}
