package attacher

import (
	"fmt"
	"hash/fnv"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// jitter shortens each delay of a rate limiter by up to a fifth, so that keys
// that failed together are not tried together again. The fifth is drawn from the key,
// so that what happens is a function of what happened before.
type jitter[T comparable] struct{ workqueue.TypedRateLimiter[T] }

// When is the limiter's delay, less up to a fifth.
func (j jitter[T]) When(item T) time.Duration {
	delay := j.TypedRateLimiter.When(item)
	sum := fnv.New32a()
	_, _ = fmt.Fprint(sum, item, j.NumRequeues(item)) // never fails (hash.Hash)
	const part = 1000
	return delay - delay/5*time.Duration(sum.Sum32()%part)/part
}
