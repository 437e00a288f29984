package kube

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/testing/wait"
)

// Workers that are busy when the queue is shut down all leave
// (kubernetes-sigs/controller-runtime#3538).
func TestWorkersLeaveAtShutdown(t *testing.T) {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Second)
	for round := range 30 {
		q := NewQueue("shutdown-"+strconv.Itoa(round), limiter).(*queue[string])
		var workers sync.WaitGroup
		begun := make(chan struct{}, 1)
		for w := range 20 {
			workers.Go(func() {
				for i := 0; ; i++ {
					q.Add(strconv.Itoa(w*1_000_000 + i))
					k, _, shutdown := q.GetWithPriority()
					if shutdown {
						return
					}
					q.Done(k)
					if i == 100 {
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		wait.For(t, "the workers to begin", begun)
		q.ShutDown()
		q.ShutDown()
		left := make(chan struct{})
		go func() { workers.Wait(); close(left) }()
		wait.For(t, "the workers to end", left)
	}
}
