package kube

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// queue is controller-runtime's priority queue without its shutdown, which can deadlock in v0.24.1
// (kubernetes-sigs/controller-runtime#3538): handleReadyItems (pkg/controller/priorityqueue/priorityqueue.go:400)
// passes an item to a worker that ShutDown has released, while it holds the locks that other workers need to return.
// The process would not release its lease within the grace period.
//
// Delete this file and NewQueue in the options of each controller with the first release that has the fix: v0.24.2
// (#3549, merged, not released) or v0.25.0 (#3540, for Kubernetes 1.37).
type queue[K comparable] struct {
	priorityqueue.PriorityQueue[K]

	down     chan struct{}
	shutDown func()
}

// NewQueue returns a priority queue that releases its workers when it is shut down. Each controller needs it as NewQueue.
func NewQueue[K comparable](name string, limiter workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimitingInterface[K] {
	down := make(chan struct{})
	return &queue[K]{
		PriorityQueue: priorityqueue.New(name, func(o *priorityqueue.Opts[K]) { o.RateLimiter = limiter }),
		down:          down,
		shutDown:      sync.OnceFunc(func() { close(down) }),
	}
}

// GetWithPriority returns the next item, or shutdown.
func (q *queue[K]) GetWithPriority() (k K, priority int, shutdown bool) {
	type item struct {
		key      K
		priority int
	}
	next := make(chan item, 1)
	go func() {
		k, priority, _ := q.PriorityQueue.GetWithPriority()
		next <- item{k, priority}
	}()
	select {
	case i := <-next:
		return i.key, i.priority, false
	case <-q.down:
		return k, 0, true
	}
}

// Get is GetWithPriority without the priority.
func (q *queue[K]) Get() (k K, shutdown bool) {
	k, _, shutdown = q.GetWithPriority()
	return k, shutdown
}

// ShutDown releases the workers. The inner queue lives until the process exits.
func (q *queue[K]) ShutDown() { q.shutDown() }

// ShutDownWithDrain is ShutDown: the next leader processes the rest.
func (q *queue[K]) ShutDownWithDrain() { q.ShutDown() }
