package kube

import (
	"hash/fnv"
	"slices"
	"strconv"
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
	coarse   bool // the store's indexers are Coarse(indexers)

	mu sync.Mutex
	// written holds the answer to our last write of each object that the cache was
	// not seen to have reached yet. It has indexers too: a burst of writes must not make
	// each read look at all of them.
	written cache.Indexer
	// ending holds, by name, each object that we deleted, or whose last finalizer we
	// removed, and of which the cache does not say so yet.
	ending map[string]ending
}

type ending struct {
	uid  types.UID
	gone bool // not only marked as being deleted
}

// NewNewest reads from store, whose indexers it must be given: they are applied to
// the objects that the store does not have yet too.
func NewNewest[T Object[T]](store cache.Indexer, indexers cache.Indexers) *Newest[T] {
	return &Newest[T]{
		store: store, indexers: indexers,
		written: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers), ending: map[string]ending{},
	}
}

// NewCoarse is NewNewest for a store whose indexers are Coarse(indexers).
func NewCoarse[T Object[T]](store cache.Indexer, indexers cache.Indexers) *Newest[T] {
	n := NewNewest[T](store, indexers)
	n.coarse = true
	return n
}

// Coarse returns indexers by buckets of the values. An index by the value itself has a set
// for each object, a third of what a trimmed object takes. Newest leaves out what else is
// in the bucket.
func Coarse(exact cache.Indexers) cache.Indexers {
	indexers := cache.Indexers{}
	for name, values := range exact {
		indexers[name] = func(obj any) ([]string, error) {
			found, err := values(obj)
			buckets := make([]string, 0, len(found))
			for _, value := range found {
				buckets = append(buckets, bucket(value))
			}
			return buckets, err
		}
	}
	return indexers
}

// buckets is by how many values a coarse index sorts at most.
const buckets = 4096

func bucket(value string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(value)) // never fails (hash.Hash)
	return strconv.FormatUint(uint64(sum.Sum32()%buckets), 36)
}

// Wrote remembers the API server's answer to a write, or to a read past the cache.
func (n *Newest[T]) Wrote(obj T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if reached(n.store.LastStoreSyncResourceVersion(), obj.GetResourceVersion()) {
		return // the cache has it, or what came after
	}
	if old, ok := n.ours(obj.GetName()); ok && old.GetUID() == obj.GetUID() && !older(old, obj) {
		return
	}
	_ = n.written.Update(obj) // fails only for an object without a name
}

// ours is the answer to our last write.
func (n *Newest[T]) ours(name string) (T, bool) { return find[T](n.written, name) }

// drop forgets an answer.
func (n *Newest[T]) drop(obj T) { _ = n.written.Delete(obj) } // fails only for an object without a name

// Deleted remembers that the API server accepted the delete of the object.
func (n *Newest[T]) Deleted(name string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ending[name] = ending{uid: uid}
}

// Ended remembers that a write of ours removed the last finalizer of an object that was
// being deleted: there is no such object anymore.
func (n *Newest[T]) Ended(obj T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old, ok := n.ours(obj.GetName()); ok && old.GetUID() == obj.GetUID() {
		n.drop(old)
	}
	if cached, ok := n.cached(obj.GetName()); ok && cached.GetUID() == obj.GetUID() {
		n.ending[obj.GetName()] = ending{uid: obj.GetUID(), gone: true}
	}
}

// CaughtUp forgets what the cache has come past. It is for an informer's handlers: an
// object that is not read again after its last event would be kept forever.
func (n *Newest[T]) CaughtUp(name string) { n.Get(name) }

// Get returns the newest known version of the object. It is shared: do not change it.
func (n *Newest[T]) Get(name string) (T, bool) {
	// The mark is read before the object: an event that comes in between makes us
	// keep our own answer for once more, and never lose it.
	mark := n.store.LastStoreSyncResourceVersion()
	cached, ok := n.cached(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.newest(name, cached, ok, mark)
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
	place := value
	if n.coarse {
		place = bucket(value)
	}
	items, err := n.store.ByIndex(index, place)
	if err != nil {
		panic("kube: no such index: " + index) // programmer error
	}
	found := make(map[string]T, len(items))
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, item := range items {
		cached := item.(T)
		if obj, ok := n.newest(cached.GetName(), cached, true, mark); ok && n.carries(obj, index, value) {
			found[cached.GetName()] = obj
		}
	}
	names, err := n.written.IndexKeys(index, value)
	if err != nil {
		panic("kube: no such index: " + index) // programmer error
	}
	for _, name := range names {
		if _, ok := found[name]; ok {
			continue
		}
		if obj, ok := n.newestWritten(name, mark); ok {
			found[name] = obj
		}
	}
	return found
}

// carries reports whether an object that was found by a value has it, and not only one of
// the same bucket.
func (n *Newest[T]) carries(obj T, index, value string) bool {
	if !n.coarse {
		return true
	}
	values, err := n.indexers[index](obj)
	return err == nil && slices.Contains(values, value)
}

func (n *Newest[T]) cached(name string) (T, bool) { return find[T](n.store, name) }

func find[T any](store cache.Indexer, name string) (T, bool) {
	var none T
	item, ok, err := store.GetByKey(name)
	if err != nil || !ok {
		return none, false
	}
	return item.(T), true
}

// newest chooses between the cached version, read when the store stood at or after
// mark, and ours.
func (n *Newest[T]) newest(name string, cached T, ok bool, mark string) (T, bool) {
	if ours, have := n.ours(name); have {
		same := ok && cached.GetUID() == ours.GetUID()
		if same && !older(cached, ours) || reached(mark, ours.GetResourceVersion()) {
			n.drop(ours)
		} else {
			cached, ok = ours, true
		}
	}
	end, have := n.ending[name]
	switch {
	case !have:
	case !ok || cached.GetUID() != end.uid || !end.gone && cached.GetDeletionTimestamp() != nil:
		delete(n.ending, name)
	case end.gone:
		var none T
		return none, false
	default:
		cached = cached.DeepCopy()
		cached.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(0, 0)})
	}
	return cached, ok
}

// newestWritten is pick for an object that was not found in the cache's index: it may
// be in the cache all the same, in another version.
func (n *Newest[T]) newestWritten(name, mark string) (T, bool) {
	cached, ok := n.cached(name)
	return n.newest(name, cached, ok, mark)
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
