package attacher

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// With csi-attacher's limits 100 attaches take as long as their requests need, and no longer: none fails while it waits
// for the rate limiter, and nothing is logged as failed.
func TestLowRequestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const volumes, qps, burst = 100, 5, 10
		b := newBubble(t)
		for i := range volumes {
			b.attach(fmt.Sprint("v", i), "node1")
		}
		begun := time.Now()
		stop := b.start(func(c *Config) { c.QPS, c.Burst = qps, burst })
		defer stop()                   // after the log is free again
		const requests = 3*volumes + 1 // both finalizers and the result; one list
		floor := (requests - burst) * time.Second / qps
		time.Sleep(floor + time.Second)
		for i := range volumes {
			if !b.isAttached(fmt.Sprint("v", i), "node1") {
				t.Fatalf("volume %d is not attached after %v", i, time.Since(begun))
			}
		}
		sent := b.api.sent(begun)
		if len(sent) != requests {
			t.Errorf("%d requests, want %d", len(sent), requests)
		}
		if took := sent[len(sent)-1].Sub(begun); took < floor {
			t.Errorf("%d requests took %v: the limit was not kept", len(sent), took)
		}
		b.log.mu.Lock()
		defer b.log.mu.Unlock()
		for _, one := range b.log.lines {
			if one["error"] != nil {
				t.Errorf("logged as failed: %v", one)
			}
		}
	})
}

// A request has all its time when its turn comes.
func TestWaitForATurnIsNotTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Attacher{limit: requestLimit(0.01, 1)}
		for range 2 {
			err := a.request(t.Context(), func(ctx context.Context) error {
				if deadline, _ := ctx.Deadline(); time.Until(deadline) != writeTimeout {
					t.Errorf("%v left for the request, want %v", time.Until(deadline), writeTimeout)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// Few keys are processed in parallel while requests are limited: a key that becomes urgent waits for at most one
// second's requests.
func TestWorkersForALimit(t *testing.T) {
	for qps, want := range map[float32]int{-1: workers, 0: workers, 0.5: 2, 1: 2, 5: 5, 20: 20, 1000: workers} {
		if got := workersFor(qps); got != want {
			t.Errorf("%v requests a second: %d workers, want %d", qps, got, want)
		}
	}
}
