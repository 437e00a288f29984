package simulation

import (
	"context"
	"strconv"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// caches are the watch caches of one controller. Each kind lags on its own.
type caches struct {
	cache.Cache // what the controller does not use is not there

	informers map[kind]*informer
}

// newCaches begins with a list that may be older than the newest state: the API
// server answers first lists from a cache of its own.
func newCaches(s *sim) *caches {
	transforms := map[kind]toolscache.TransformFunc{}
	for obj, options := range kube.CacheOptions().ByObject {
		transforms[kindOf(obj)] = options.Transform
	}
	c := &caches{informers: map[kind]*informer{}}
	for _, k := range allKinds {
		behind := 0
		if !s.calm && s.chance(50) {
			behind = s.rng.IntN(12)
		}
		c.informers[k] = newInformer(s.api, k, max(0, s.api.version-behind), transforms[k])
	}
	return c
}

func (c *caches) GetInformer(_ context.Context, obj client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return c.informers[kindOf(obj)], nil
}

func (c *caches) WaitForCacheSync(context.Context) bool { return true }

// informer shows what a kind was like at one version.
type informer struct {
	toolscache.SharedIndexInformer // what the controller does not use is not there

	api       *server
	kind      kind
	transform toolscache.TransformFunc
	store     toolscache.Indexer
	next      int // index of the first event that was not seen
	seen      int // the version of the last one that was

	mu       sync.Mutex
	handlers []*registration
}

type registration struct {
	handler toolscache.ResourceEventHandler
}

func (*registration) HasSynced() bool { return true }

func (*registration) HasSyncedChecker() toolscache.DoneChecker { return nil }

func newInformer(api *server, k kind, version int, transform toolscache.TransformFunc) *informer {
	i := &informer{
		api: api, kind: k, transform: transform, seen: version,
		store: toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, toolscache.Indexers{}),
	}
	for i.next < len(api.history[k]) && api.history[k][i.next].version <= version {
		i.next++
	}
	var items []any
	for _, obj := range api.at(k, version) {
		items = append(items, i.trimmed(obj))
	}
	if err := i.store.Replace(items, strconv.Itoa(version)); err != nil {
		panic(err) // objects of the simulation have names
	}
	return i
}

func (i *informer) trimmed(obj client.Object) any {
	if i.transform == nil {
		return obj
	}
	out, err := i.transform(obj.DeepCopyObject())
	if err != nil {
		panic(err) // the transforms of package kube do not fail
	}
	return out
}

// behind is how many events were not seen yet.
func (i *informer) behind() int { return len(i.api.history[i.kind]) - i.next }

// deliver shows the next events.
func (i *informer) deliver(n int) {
	for range n {
		e := i.api.history[i.kind][i.next]
		i.next++
		i.seen = e.version
		obj := i.trimmed(e.object)
		old, had, err := i.store.Get(obj)
		if err == nil && e.deleted {
			err = i.store.Delete(obj)
		} else if err == nil {
			err = i.store.Update(obj)
		}
		if err != nil {
			panic(err) // objects of the simulation have names
		}
		i.mu.Lock()
		handlers := append([]*registration(nil), i.handlers...)
		i.mu.Unlock()
		for _, r := range handlers {
			switch {
			case e.deleted && had:
				r.handler.OnDelete(obj)
			case e.deleted:
			case had:
				r.handler.OnUpdate(old, obj)
			default:
				r.handler.OnAdd(obj, false)
			}
		}
	}
}

func (i *informer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	r := &registration{handler: handler}
	i.mu.Lock()
	i.handlers = append(i.handlers, r)
	i.mu.Unlock()
	for _, obj := range i.store.List() {
		handler.OnAdd(obj, true)
	}
	return r, nil
}

func (i *informer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *informer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *informer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, r := range i.handlers {
		if r == handle {
			i.handlers = append(i.handlers[:n:n], i.handlers[n+1:]...)
			break
		}
	}
	return nil
}

func (i *informer) AddIndexers(indexers toolscache.Indexers) error {
	return i.store.AddIndexers(indexers)
}
func (i *informer) GetIndexer() toolscache.Indexer { return i.store }
func (i *informer) GetStore() toolscache.Store     { return i.store }
func (i *informer) HasSynced() bool                { return true }
func (i *informer) IsStopped() bool                { return false }
func (i *informer) LastSyncResourceVersion() string {
	return i.store.LastStoreSyncResourceVersion()
}

func (i *informer) HasSyncedChecker() toolscache.DoneChecker { return synced{} }

// synced is done from the start.
type synced struct{}

func (synced) Name() string { return "simulation" }

func (synced) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

var _ cache.Informer = (*informer)(nil)
