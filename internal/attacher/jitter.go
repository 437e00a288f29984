package attacher

import (
	"math/rand/v2"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// jitter shortens each delay of a rate limiter by up to a fifth, so that keys
// that failed together are not tried together again.
type jitter[T comparable] struct{ workqueue.TypedRateLimiter[T] }

// When is the limiter's delay, less up to a fifth.
func (j jitter[T]) When(item T) time.Duration {
	delay := j.TypedRateLimiter.When(item)
	return delay - time.Duration(rand.Int64N(int64(delay/5)+1)) //nolint:gosec // spreads retries, keeps no secret
}
