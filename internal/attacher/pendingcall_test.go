package attacher

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// pending is what the VolumeAttachment says about a call that takes long.
func (b *bubble) pending(volume, node string) (call kube.PendingCall, ok bool) {
	return kube.PendingCallOf(b.attachment(volume, node), time.Now())
}

// requests counts those since a time.
func (b *bubble) requests(since time.Time) int { return len(b.api.sent(since)) }

// A call that takes longer than slowAfter is written on its VolumeAttachment, with one request. One that does not makes none.
func TestCallThatTakesLongIsWrittenOnce(t *testing.T) {
	tests := map[string]struct {
		takes  time.Duration
		writes int
	}{"at once": {0, 0}, "9 s": {9 * time.Second, 0}, "13 s": {13 * time.Second, 1}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.answers(func(ctx context.Context, _ call) error { return lasting(ctx, tt.takes) })
				b.volume("v")
				b.node("node", "id-node")
				b.pass(time.Second)
				begun := time.Now()
				b.attach("v", "node")
				b.pass(slowAfter - time.Millisecond)
				if _, says := b.attachment("v", "node").Annotations[kube.PendingCallAnnotation]; says {
					t.Errorf("written before %v", slowAfter)
				}
				b.pass(lookEvery + 2*time.Millisecond)
				want := kube.PendingCall{Reason: publication.CallInFlight, Call: "ControllerPublishVolume", Since: begun.UTC(), Until: begun.Add(25 * time.Second).UTC()}
				if got, says := b.pending("v", "node"); says != (tt.writes > 0) || says && got != want {
					t.Errorf("written: %+v, %v, want %+v", got, says, want)
				}
				b.within(tt.takes, "attached", func() bool { return b.isAttached("v", "node") })
				if _, says := b.pending("v", "node"); says {
					t.Error("it still counts after the attach")
				}
				b.pass(time.Hour)
				if got := b.requests(begun); got != 3+tt.writes { // two finalizers and the result
					t.Errorf("%d requests for the attach, want %d", got, 3+tt.writes)
				}
				b.pass(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
				begun = time.Now()
				b.detach("v", "node")
				b.pass(slowAfter + lookEvery + time.Millisecond)
				if tt.writes > 0 {
					want := kube.PendingCall{Reason: publication.CallInFlight, Call: "ControllerUnpublishVolume", Since: begun.UTC(), Until: begun.Add(25 * time.Second).UTC()}
					if got, _ := b.pending("v", "node"); got != want {
						t.Errorf("written at the detach: %+v, want %+v", got, want)
					}
				}
				b.within(tt.takes, "detached", func() bool { return b.isGone("v", "node") })
			})
		})
	}
}

// Each attempt that gets no answer is written once, and its error ends that.
func TestEachUnansweredAttemptIsWrittenOnce(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.answers(func(ctx context.Context, _ call) error { return unanswered(ctx) })
		b.volume("v")
		b.node("node", "id-node")
		b.pass(time.Second)
		begun := time.Now()
		b.attach("v", "node")
		for b.pass(10 * time.Minute); ; b.pass(time.Second) { // until a call has run for long enough
			calls := b.driver.Calls()
			if since := time.Since(calls[len(calls)-1].At); since < slowAfter+lookEvery+time.Millisecond || since >= 15*time.Second {
				continue
			}
			if got, says := b.pending("v", "node"); !says || time.Since(got.Since) > 15*time.Second {
				t.Errorf("written: %+v, %v", got, says)
			}
			if got, want := b.requests(begun), 1+2*len(calls); got != want {
				t.Errorf("%d requests for %d attempts, want %d: finalizers, one write for each, and an error for each that has ended", got, len(calls), want)
			}
			break
		}
	})
}

// A call that cannot be sent says what holds it back, until it is sent.
func TestCallThatIsHeldBackIsWritten(t *testing.T) {
	long := func(c *Config) { c.WorkerThreads, c.Timeout = 1, 25*time.Minute }
	inBubbleWith(t, long, func(b *bubble) {
		b.answers(func(ctx context.Context, c call) error {
			if c.Volume == "v" {
				return lasting(ctx, 15*time.Second)
			}
			return unanswered(ctx)
		})
		b.attach("hangs", "node")
		b.pass(time.Second)
		begun := time.Now()
		b.attach("v", "node")
		says := func(after time.Duration, want publication.Reason, call string, since time.Duration) {
			t.Helper()
			b.pass(time.Until(begun.Add(after)))
			got, ok := b.pending("v", "node")
			if ok != (want != "") || got.Reason != want || got.Call != call || ok && got.Since.Sub(begun).Round(time.Second) != since {
				t.Errorf("after %v it says %+v, %v, want %s %s", after, got, ok, want, call)
			}
		}
		says(9*time.Second, "", "", 0)
		says(slowAfter+2*lookEvery, publication.DriverBusy, "", 0)
		says(9*time.Minute, publication.DriverBusy, "", 0)
		says(19*time.Minute, publication.DriverBusy, "", 0) // written again
		b.pass(time.Until(begun.Add(25*time.Minute + 5*time.Second)))
		calls := b.driver.Calls()
		sent := calls[len(calls)-1]
		if sent.Volume != "v" {
			t.Fatalf("calls: %v", b.received(""))
		}
		says(sent.At.Sub(begun)+slowAfter+2*lookEvery, publication.CallInFlight, "ControllerPublishVolume", sent.At.Sub(begun).Round(time.Second))
		b.within(15*time.Second, "attached", func() bool { return b.isAttached("v", "node") })
		if calls := &b.attacher.longCalls; len(calls.held) > 0 || calls.inFlight[b.attachment("v", "node").UID].name != "" {
			t.Errorf("%v is left", calls.held)
		}
	})
}

// What is written about slow calls takes no turn from a request that has one to write.
func TestPendingCallsLeaveTheRateLimitToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.answers(func(ctx context.Context, _ call) error { return lasting(ctx, 11*time.Second) })
		const volumes = 40
		for i := range volumes {
			b.attach(fmt.Sprint("v", i), "node")
		}
		begun := time.Now()
		defer b.start(func(c *Config) { c.QPS, c.Burst = 5, 10 })()
		b.pass(30 * time.Second)
		now := b.requests(begun)
		if most := 10 + 5*30 + 1; now > most {
			t.Errorf("%d requests in 30 s, want at most %d", now, most)
		}
		for i := range volumes {
			if !b.isAttached(fmt.Sprint("v", i), "node") {
				t.Errorf("volume %d is not attached", i)
			}
		}
	})
}

// Thousands of calls may be held back for one reason: a bounded number of requests says so, for those that wait longest.
func TestPendingCallsThatAreHeldBackAreBounded(t *testing.T) {
	long := func(c *Config) { c.WorkerThreads, c.Timeout = 1, time.Hour }
	inBubbleWith(t, long, func(b *bubble) {
		b.answers(func(ctx context.Context, c call) error { return unanswered(ctx) })
		b.attach("hangs", "node")
		b.pass(time.Second)
		begun := time.Now()
		const volumes = 300
		for i := range volumes {
			b.attach(fmt.Sprintf("v%03d", i), "node")
			b.pass(time.Millisecond)
		}
		says := func() (said int) {
			for i := range volumes {
				if _, ok := b.pending(fmt.Sprintf("v%03d", i), "node"); ok {
					if said++; i >= heldAtMost {
						t.Fatalf("volume %d says it, which waits less long than others", i)
					}
				}
			}
			return said
		}
		for _, after := range []time.Duration{time.Minute, 9 * time.Minute, 19 * time.Minute, 29 * time.Minute} {
			b.pass(time.Until(begun.Add(after)))
			if got := says(); got != heldAtMost {
				t.Errorf("after %v %d say that they are held back, want %d", after, got, heldAtMost)
			}
		}
		if got := b.requests(begun.Add(time.Minute)); got != 2*heldAtMost {
			t.Errorf("%d requests repeat that in half an hour, want %d", got, 2*heldAtMost)
		}
	})
}

// What a process that was killed wrote does not count forever: the next one writes what it does itself.
func TestPendingCallOfAKilledProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.answers(func(ctx context.Context, _ call) error { return unanswered(ctx) })
		stop := b.start(func(c *Config) { c.Timeout = 6 * time.Minute })
		b.attach("v", "node")
		b.pass(time.Minute)
		first, _ := b.pending("v", "node")
		stop()
		b.answers(func(ctx context.Context, c call) error { return status.Error(codes.Internal, "no") })
		b.pass(time.Minute)
		if got, says := b.pending("v", "node"); !says || got != first {
			t.Errorf("says %+v, %v, want the word of the process that was killed", got, says)
		}
		defer b.start()()
		b.pass(time.Second)
		if got, says := b.pending("v", "node"); says {
			t.Errorf("after the answer to the next process: %+v", got)
		}
	})
}

// A real API server stores the annotation, and the writes of the status leave it as it is: the result ends that it counts.
func TestPendingCallAtAnAPIServer(t *testing.T) {
	w := newWorld(t)
	answer := make(chan struct{})
	w.driver.SetAnswer(func(ctx context.Context, c call, _ int) (map[string]string, error) {
		if c.Method == "Publish" {
			select {
			case <-answer:
			case <-ctx.Done():
			}
		}
		return nil, nil
	})
	w.node("node1")
	w.volume("pv1")
	w.start()
	va := w.attachment("pv1", "node1")
	says := func(va *storagev1.VolumeAttachment) bool {
		_, ok := kube.PendingCallOf(va, time.Now())
		return ok
	}
	w.until(va, "says that its call is in flight", says)
	close(answer)
	if stored := w.until(va, "attached", isAttached); says(stored) || stored.Annotations[kube.PendingCallAnnotation] == "" {
		t.Errorf("after the attach: annotations %v, want one that does not count", stored.Annotations)
	}
	w.delete(va)
	w.until(va, "gone", isGone)
}
