package nodeagent

import (
	"context"
	"math/rand/v2"
	"time"
)

// signal wakes the one goroutine that does some work against the API server. Those that come while it is at work are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// serve does the work at each signal until ctx ends, and after a back-off if it failed. failures counts those in a row before.
func (s signal) serve(ctx context.Context, work func(failures int) error) {
	failures := 0
	for {
		var retry <-chan time.Time
		if failures > 0 {
			retry = time.After(apiBackOff(failures))
		}
		select {
		case <-ctx.Done():
			return
		case <-s:
		case <-retry:
		}
		if work(failures) == nil {
			failures = 0
		} else {
			failures++
		}
	}
}

// apiBackOff is how long to wait after a failed call to the API server: 20 ms,
// doubled up to 5 s, stretched by up to a fifth.
func apiBackOff(failures int) time.Duration {
	wait := 5 * time.Second
	if failures < 9 {
		wait = min(wait, 20*time.Millisecond<<(failures-1))
	}
	return wait + time.Duration(rand.Int64N(int64(wait)/5)) //nolint:gosec // spreads retries
}
