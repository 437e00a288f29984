package nodeagent

import (
	"context"
	"math/rand/v2"
	"time"

	"belay.dev/belay/internal/kube"
)

// signal wakes a single worker. Signals during its work are combined into one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) wake() { kube.Signal(s) }

// serve runs work at each signal until ctx ends, and again after a back-off if it fails. failures counts its failures in a row.
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

// apiBackOff is the delay after a failed call to the API server: 20 ms, doubled up to 5 s, plus up to a fifth.
func apiBackOff(failures int) time.Duration {
	wait := 5 * time.Second
	if failures < 9 {
		wait = min(wait, 20*time.Millisecond<<(failures-1))
	}
	return wait + time.Duration(rand.Int64N(int64(wait)/5)) //nolint:gosec // spreads retries
}
