package kube

import (
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Object is an API object that can be copied to its own type.
type Object[T any] interface {
	client.Object
	DeepCopy() T
}

// Newest reads cluster-scoped objects of one kind from a watch cache, or from the
// answers to our own writes where the cache has not come that far. A decision made
// on what it returns never overlooks what we did ourselves.
type Newest[T Object[T]] struct {
	store    cache.Indexer
	indexers cache.Indexers

	mu sync.Mutex
	// written holds, by name, the answer to our last write of each object that the
	// cache was not seen to have reached yet.
	written map[string]T
	// values indexes them: index, value, names. A burst of writes must not make each
	// read look at all of them.
	values map[string]map[string]map[string]bool
	// deleting holds, by name, the UID of each object whose delete was accepted and
	// of which the cache does not say so yet.
	deleting map[string]types.UID
}

// NewNewest reads from store, whose indexers it must be given: they are applied to
// the objects that the store does not have yet too.
func NewNewest[T Object[T]](store cache.Indexer, indexers cache.Indexers) *Newest[T] {
	return &Newest[T]{
		store: store, indexers: indexers,
		written: map[string]T{}, values: map[string]map[string]map[string]bool{}, deleting: map[string]types.UID{},
	}
}

// Wrote remembers the API server's answer to a write, or to a read past the cache.
func (n *Newest[T]) Wrote(obj T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old, ok := n.written[obj.GetName()]; ok && old.GetUID() == obj.GetUID() && !older(old, obj) {
		return
	}
	n.drop(obj.GetName())
	n.written[obj.GetName()] = obj
	n.index(obj, func(names map[string]bool) { names[obj.GetName()] = true })
}

// drop forgets an answer.
func (n *Newest[T]) drop(name string) {
	if old, ok := n.written[name]; ok {
		delete(n.written, name)
		n.index(old, func(names map[string]bool) { delete(names, name) })
	}
}

// index changes the names under each value that the object has in each index.
func (n *Newest[T]) index(obj T, change func(names map[string]bool)) {
	for index, valuesOf := range n.indexers {
		values, err := valuesOf(obj)
		if err != nil {
			continue // a store would refuse the object
		}
		if n.values[index] == nil {
			n.values[index] = map[string]map[string]bool{}
		}
		for _, value := range values {
			names := n.values[index][value]
			if names == nil {
				names = map[string]bool{}
				n.values[index][value] = names
			}
			if change(names); len(names) == 0 {
				delete(n.values[index], value)
			}
		}
	}
}

// Deleted remembers that the API server accepted the delete of the object.
func (n *Newest[T]) Deleted(name string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deleting[name] = uid
}

// Get returns the newest known version of the object. It is shared: do not change it.
func (n *Newest[T]) Get(name string) (T, bool) {
	// The mark is read before the object: an event that comes in between makes us
	// keep our own answer for once more, and never lose it.
	mark := n.store.LastStoreSyncResourceVersion()
	cached, ok := n.cached(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pick(name, cached, ok, mark)
}

// Cached returns all objects of the cache, without what we wrote since. They are shared.
func (n *Newest[T]) Cached() []T {
	items := n.store.List()
	found := make([]T, 0, len(items))
	for _, item := range items {
		found = append(found, item.(T))
	}
	return found
}

// ByIndex returns, by name, the newest known versions of the objects that carry the
// value in the index, in the cache or in an answer to our own writes.
func (n *Newest[T]) ByIndex(index, value string) map[string]T {
	mark := n.store.LastStoreSyncResourceVersion()
	items, err := n.store.ByIndex(index, value)
	if err != nil {
		panic("kube: no such index: " + index) // programmer error
	}
	found := make(map[string]T, len(items))
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, item := range items {
		cached := item.(T)
		if obj, ok := n.pick(cached.GetName(), cached, true, mark); ok {
			found[cached.GetName()] = obj
		}
	}
	for _, name := range slices.Collect(maps.Keys(n.values[index][value])) {
		if _, ok := found[name]; ok {
			continue
		}
		if obj, ok := n.pickWritten(name, mark); ok {
			found[name] = obj
		}
	}
	return found
}

func (n *Newest[T]) cached(name string) (T, bool) {
	var none T
	item, ok, err := n.store.GetByKey(name)
	if err != nil || !ok {
		return none, false
	}
	return item.(T), true
}

// pick chooses between the cached version, read when the store stood at or after
// mark, and ours.
func (n *Newest[T]) pick(name string, cached T, ok bool, mark string) (T, bool) {
	if ours, have := n.written[name]; have {
		same := ok && cached.GetUID() == ours.GetUID()
		if same && !older(cached, ours) || reached(mark, ours.GetResourceVersion()) {
			n.drop(name)
		} else {
			cached, ok = ours, true
		}
	}
	uid, have := n.deleting[name]
	switch {
	case !have:
	case !ok || cached.GetUID() != uid || cached.GetDeletionTimestamp() != nil:
		delete(n.deleting, name)
	default:
		cached = cached.DeepCopy()
		cached.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(0, 0)})
	}
	return cached, ok
}

// pickWritten is pick for an object that was not found in the cache's index: it may
// be in the cache all the same, in another version.
func (n *Newest[T]) pickWritten(name, mark string) (T, bool) {
	cached, ok := n.cached(name)
	return n.pick(name, cached, ok, mark)
}

func older(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}

// reached tells whether a cache that stands at mark has seen the given version.
func reached(mark, version string) bool {
	order, err := resourceversion.CompareResourceVersion(mark, version)
	return err == nil && order >= 0
}
