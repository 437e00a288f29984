package attacher

import (
	"context"
	"errors"
	"math"

	"k8s.io/client-go/util/flowcontrol"
)

// workers is the number of keys that are processed at once. They wait only for the API server, so --worker-threads does
// not bound them. In a burst on a small control plane a request takes some tenths of a second, and 32 workers delayed
// all pods. One HTTP/2 connection carries 100 requests.
const workers = 96

// requestLimit returns the rate limiter for API requests, or nil.
func requestLimit(qps float32, burst int) flowcontrol.RateLimiter {
	if qps <= 0 {
		return nil
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// workersFor returns the number of workers for a rate limit: enough to use it if each request takes a second. More
// would only queue requests ahead of later, more urgent ones.
func workersFor(qps float32) int {
	if qps <= 0 {
		return workers
	}
	return int(min(max(2, math.Ceil(float64(qps))), workers))
}

// errRequestTimeout is the cause when a request takes longer than writeTimeout.
var errRequestTimeout = errors.New("the API server did not answer in time")

// request sends one API request. It first waits for the rate limiter (--kube-api-qps), outside writeTimeout.
func (a *Attacher) request(ctx context.Context, send func(ctx context.Context) error) error {
	if a.limit != nil {
		if err := a.limit.Wait(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, errRequestTimeout)
	defer cancel()
	return send(ctx)
}
