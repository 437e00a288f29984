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
)

// attempts are the seconds since the first attempt for a volume at which the driver was called for it.
func (b *bubble) attempts(volume string) (at []int) {
	var first time.Time
	for _, c := range b.driver.Calls() {
		if c.Volume != volume {
			continue
		}
		if first.IsZero() {
			first = c.At
		}
		at = append(at, int(c.At.Sub(first).Seconds()))
	}
	return at
}

// An attempt out of turn that fails leaves the schedule as it was: a person's retry makes nothing slower.
func TestFailedRetryLeavesTheSchedule(t *testing.T) {
	schedule := func(retries ...time.Duration) (attempts []int) {
		inBubble(t, 10, func(b *bubble) {
			b.answers(func(context.Context, call) error { return status.Error(codes.Internal, "not now") })
			b.attach("v", "node1")
			begun := time.Now()
			for i, after := range retries {
				b.pass(time.Until(begun.Add(after)))
				b.annotate("v", "node1", "retry", fmt.Sprint(i))
			}
			b.pass(time.Until(begun.Add(10 * time.Minute)))
			attempts = b.attempts("v")
		})
		return attempts
	}
	alone := schedule()
	retried := schedule(20*time.Second, 21*time.Second, 22*time.Second, 100*time.Second)
	if len(retried) != len(alone)+4 {
		t.Errorf("%d attempts, want four more than %d", len(retried), len(alone))
	}
	for _, at := range alone {
		if !slices.Contains(retried, at) {
			t.Errorf("no attempt after %d s, as without a retry: %v, want %v and four more", at, retried, alone)
		}
	}
}

// The first success of a driver after an outage has the others tried again: each success two of them, and each of them once before its next
// attempt is due.
func TestEndOfAnOutage(t *testing.T) {
	for _, volumes := range []int{12, 100} {
		t.Run(fmt.Sprint(volumes), func(t *testing.T) {
			inBubble(t, defaultWorkerThreads, func(b *bubble) {
				well := false
				b.answers(func(ctx context.Context, _ call) error {
					if !well {
						return status.Error(codes.Unavailable, "the cloud does not answer")
					}
					return lasting(ctx, time.Second)
				})
				for i := range volumes {
					b.attach(fmt.Sprint("v", i), fmt.Sprint("node", i))
					b.pass(time.Second)
				}
				b.pass(10 * time.Minute)
				well = true
				count := func() (n int) {
					for i := range volumes {
						if b.isAttached(fmt.Sprint("v", i), fmt.Sprint("node", i)) {
							n++
						}
					}
					return n
				}
				for count() == 0 {
					b.pass(100 * time.Millisecond)
				}
				b.within(10*time.Second, "all attached after the first was", func() bool { return count() == volumes })
			})
		})
	}
}

// A driver that fails again and again gets no storm of calls: at most one more for each that is due.
func TestFlappingDriverGetsNoStorm(t *testing.T) {
	calls := func(succeeds func(n int) bool) (total int) {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t)
			n := 0
			b.answers(func(_ context.Context, c call) error {
				if n++; c.Volume == "well" && succeeds(n) {
					return nil
				}
				return status.Error(codes.Unavailable, "flapping")
			})
			defer b.start()()
			b.pass(time.Second)
			for i := range 50 {
				b.attach(fmt.Sprint("v", i), fmt.Sprint("node", i))
			}
			for range 600 { // a success each second
				b.attach("well", "node-well")
				b.pass(time.Second)
				b.end("well", "node-well")
				b.pass(time.Second)
			}
			for _, c := range b.driver.Calls() {
				if c.Volume != "well" {
					total++
				}
			}
		})
		return total
	}
	never, often := calls(func(int) bool { return false }), calls(func(int) bool { return true })
	if often > 2*never || often == never {
		t.Errorf("%d calls for volumes that fail beside one that succeeds, want more than the %d without and at most twice as many", often, never)
	}
}

// A machine that does one thing at a time refuses the others for a few seconds each: their attempts follow each other, and do not back off to minutes.
func TestBusyMachine(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Aborted} {
		t.Run(code.String(), func(t *testing.T) {
			inBubble(t, defaultWorkerThreads, func(b *bubble) {
				locked := make(chan struct{}, 1)
				b.answers(func(ctx context.Context, _ call) error {
					select {
					case locked <- struct{}{}:
						defer func() { <-locked }()
						return lasting(ctx, 4*time.Second)
					default:
						return status.Error(code, "failed to publish volume: server is locked")
					}
				})
				const volumes = 20
				for i := range volumes {
					b.attach(fmt.Sprint("v", i), "node1")
				}
				b.within(volumes*4*time.Second+10*time.Second, "all attached", func() bool {
					for i := range volumes {
						if !b.isAttached(fmt.Sprint("v", i), "node1") {
							return false
						}
					}
					return true
				})
			})
		})
	}
}
