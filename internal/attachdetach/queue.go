package attachdetach

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// queueOfVolumes is controller-runtime's priority queue, which in v0.24.1 can block
// for ever while it shuts down: it hands an item to a worker that has left, holding
// the locks that others need to leave. Here nobody waits for it once it is down, so
// that a process that is asked to end gives its lease back at once.
type queueOfVolumes struct {
	priorityqueue.PriorityQueue[key]

	down chan struct{}
	once sync.Once
}

func newQueue(name string, limiter workqueue.TypedRateLimiter[key]) workqueue.TypedRateLimitingInterface[key] {
	inner := priorityqueue.New(name, func(o *priorityqueue.Opts[key]) { o.RateLimiter = limiter })
	return &queueOfVolumes{PriorityQueue: inner, down: make(chan struct{})}
}

// GetWithPriority waits for the next volume or for the end.
func (q *queueOfVolumes) GetWithPriority() (k key, priority int, shutdown bool) {
	type item struct {
		key      key
		priority int
		shutdown bool
	}
	next := make(chan item, 1)
	go func() {
		k, priority, shutdown := q.PriorityQueue.GetWithPriority()
		next <- item{k, priority, shutdown}
	}()
	select {
	case i := <-next:
		return i.key, i.priority, i.shutdown
	case <-q.down:
		return key{}, 0, true
	}
}

// Get is GetWithPriority without the priority.
func (q *queueOfVolumes) Get() (k key, shutdown bool) {
	k, _, shutdown = q.GetWithPriority()
	return k, shutdown
}

// Done allows the volume to be handed out again.
func (q *queueOfVolumes) Done(k key) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.PriorityQueue.Done(k)
	}()
	select {
	case <-done:
	case <-q.down:
	}
}

// ShutDown ends the queue: what is left in it will be found again by the next leader.
func (q *queueOfVolumes) ShutDown() {
	q.once.Do(func() {
		close(q.down)
		q.PriorityQueue.ShutDown()
	})
}

// ShutDownWithDrain is ShutDown.
func (q *queueOfVolumes) ShutDownWithDrain() { q.ShutDown() }
