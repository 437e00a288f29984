package attacher

import (
	"context"
	"errors"
	"math"

	"k8s.io/client-go/util/flowcontrol"
)

// workers is how many keys are worked on at once: they wait for the API server only, so
// they are not what --worker-threads bounds. In a burst on a small control plane a request
// takes some tenths of a second, and with 32 workers all pods waited for them. One
// connection carries 100 requests at once.
const workers = 96

// requestLimit spaces requests out; nil for no limit.
func requestLimit(qps float32, burst int) flowcontrol.RateLimiter {
	if qps <= 0 {
		return nil
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// workersFor is how many keys are worked on at once where requests are limited: enough to use
// the limit while each request takes a second. What more of them sent would only stand in line
// before what becomes urgent meanwhile.
func workersFor(qps float32) int {
	if qps <= 0 {
		return workers
	}
	return int(min(max(2, math.Ceil(float64(qps))), workers))
}

// errSlowServer is the cause of a request's end after writeTimeout.
var errSlowServer = errors.New("the API server did not answer in time")

// ask sends one request to the API server. It waits for its turn first (--kube-api-qps): what
// waits was not sent, and its time has not begun.
func (a *Attacher) ask(ctx context.Context, send func(ctx context.Context) error) error {
	if a.limit != nil {
		if err := a.limit.Wait(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, errSlowServer)
	defer cancel()
	return send(ctx)
}
