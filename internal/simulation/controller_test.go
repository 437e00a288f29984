package simulation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/attachment"
)

type volumeKey = attachment.VolumeKey

// controller is one process of belay-controller.
type controller struct {
	*actor

	sim    *sim
	real   *attachdetach.Controller
	caches *caches
	queue  *queue
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	wall   *wallClock // its machine's
	clock  attachdetach.Clock
	asleep map[volumeKey]*sleep
	// leads: the barrier is passed. Before that a worker would only wait for it.
	leads atomic.Bool
}

// workersAtOnce is how many volumes a controller of the simulation works on at once.
const workersAtOnce = 3

func (s *sim) startController() *controller {
	s.started++
	c := &controller{sim: s, actor: s.newActor(fmt.Sprint("controller-", s.started)), caches: newCaches(s), queue: newQueue(), wall: s.newClock(), asleep: map[volumeKey]*sleep{}}
	c.clock = c.timekeeper()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	api := apiClient{sim: s, by: c.actor}
	var err error
	c.real, err = attachdetach.New(c.ctx, attachdetach.Parts{
		Cache: c.caches, Client: api, Live: api, Recorder: &record.FakeRecorder{}, Clock: c.clock,
	}, attachdetach.Options{Policy: s.policy, Records: client.ObjectKey{Name: recordsLease}})
	if err != nil {
		panic(err) // the parts of the simulation are complete
	}
	for _, source := range c.real.Sources() {
		if err := source.Start(c.ctx, c.queue); err != nil {
			panic(err)
		}
	}
	c.ended.Go(func() {
		if err := c.real.Lead(c.ctx); err == nil {
			c.leads.Store(true)
		}
	})
	s.say("%s leads, its clock is %v ahead", c.name, time.Duration(c.wall.ahead.Load()))
	return c
}

func (s *sim) newActor(name string) *actor {
	return &actor{name: name, net: s.net, began: s.api.now(), heard: map[string]int{}, looks: map[string]int{}, sawNodes: map[string]int{}}
}

// work gives one volume to a worker.
func (c *controller) work() (did bool) {
	keys := c.queue.ready()
	if !c.leads.Load() || len(keys) == 0 || c.queue.working() >= workersAtOnce {
		return false
	}
	key := keys[c.sim.rng.IntN(len(keys))]
	c.queue.begin(key)
	c.sim.say("%s looks at %s", c.name, handleOf(key))
	c.net.mu.Lock()
	c.looks[handleOf(key)], c.sawNodes[handleOf(key)] = c.caches.informers[attachments].seen, c.caches.informers[nodes].seen
	c.net.mu.Unlock()
	before := c.demands(key)
	c.ended.Go(func() {
		result, err := c.real.Reconcile(c.ctx, key)
		if err == nil {
			c.sim.requests.sawWanted(before, c.demands(key))
		}
		c.queue.end(key, result, err)
	})
	return true
}

// catchUp moves some of the caches on, or all of them.
func (c *controller) catchUp(fully bool) (did bool) {
	for _, k := range allKinds {
		i := c.caches.informers[k]
		switch behind := i.behind(); {
		case behind > 0 && fully:
			c.deliver(i, behind)
			did = true
		case behind > 0 && c.sim.chance(60):
			n := 1 + c.sim.rng.IntN(behind)
			c.sim.say("%s sees %d of %d %ss", c.name, n, behind, k)
			c.deliver(i, n)
			did = true
		}
	}
	return did
}

// deliver shows the next events of a kind to the process, one after another.
func (c *controller) deliver(i *informer, n int) {
	for range n {
		e := i.api.history[i.kind][i.next]
		interrupt()
		i.deliver(1)
		interrupt()
		what := fmt.Sprintf("%s %s at version %d", i.kind, short(e.object.GetName()), e.version-firstVersion)
		if e.deleted {
			what += ", which is its end"
		}
		synctest.Wait() // Lead may have waited for the event
		c.sleepers()
		c.checkSleepers(what)
	}
}

// queue is the controller's queue of volumes. The scheduler chooses whose turn it is.
type queue struct {
	mu      sync.Mutex
	waits   map[volumeKey]bool
	works   map[volumeKey]bool
	failed  map[volumeKey]int
	stopped bool
	// retries counts the volumes that are retried after a failure; those that merely sleep until a time are not among them.
	retries map[volumeKey]int
	ended   []volumeKey // since they were taken last
	all     map[volumeKey]bool
}

func newQueue() *queue {
	return &queue{waits: map[volumeKey]bool{}, works: map[volumeKey]bool{}, failed: map[volumeKey]int{}, retries: map[volumeKey]int{}, all: map[volumeKey]bool{}}
}

// asleep: nothing will look at the volume before an event or a time that was asked for.
func (q *queue) asleep(key volumeKey) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.waits[key] && !q.works[key] && q.retries[key] == 0
}

func (q *queue) takeEnded() []volumeKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	ended := sorted(q.ended)
	q.ended = nil
	return ended
}

// known are the volumes that were ever in the queue.
func (q *queue) known() []volumeKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	return sorted(slices.Collect(maps.Keys(q.all)))
}

func sorted(keys []volumeKey) []volumeKey {
	slices.SortFunc(keys, func(a, b volumeKey) int {
		return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Handle, b.Handle))
	})
	return keys
}

func (q *queue) ready() []volumeKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	return sorted(slices.DeleteFunc(slices.Collect(maps.Keys(q.waits)), func(k volumeKey) bool { return q.works[k] }))
}

func (q *queue) working() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.works)
}

func (q *queue) begin(key volumeKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waits, key)
	q.works[key], q.all[key] = true, true
}

// end does what controller-runtime does with a result.
func (q *queue) end(key volumeKey, result reconcile.Result, err error) {
	q.mu.Lock()
	delete(q.works, key)
	q.ended = append(q.ended, key)
	q.mu.Unlock()
	interrupt()
	switch {
	case err != nil:
		q.AddRateLimited(key)
	case result.RequeueAfter > 0:
		q.Forget(key)
		q.AddAfter(key, result.RequeueAfter)
	default:
		q.Forget(key)
	}
}

func (q *queue) Add(key volumeKey) {
	interrupt()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits[key] = true
}

func (q *queue) AddAfter(key volumeKey, d time.Duration) {
	time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.stopped {
			q.waits[key] = true
		}
	})
}

func (q *queue) AddRateLimited(key volumeKey) {
	q.mu.Lock()
	q.failed[key]++
	q.retries[key]++
	delay := min(5*time.Millisecond<<min(q.failed[key], 12), 10*time.Second)
	q.mu.Unlock()
	time.AfterFunc(delay, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.retries[key]--
		q.waits[key] = q.waits[key] || !q.stopped
	})
}

func (q *queue) Forget(key volumeKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.failed, key)
}

func (q *queue) NumRequeues(key volumeKey) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed[key]
}

func (q *queue) Len() int               { return len(q.ready()) }
func (q *queue) Get() (volumeKey, bool) { panic("the scheduler takes from the queue") }
func (q *queue) Done(volumeKey)         {}
func (q *queue) ShutDown()              {}
func (q *queue) ShutDownWithDrain()     {}
func (q *queue) ShuttingDown() bool     { return false }
