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

// Newest reads cluster-scoped objects of one kind from a watch cache, or from the responses to this process's own writes while the
// cache is behind. A decision based on it never misses an own write.
type Newest[T Object[T]] struct {
	store    cache.Indexer
	indexers cache.Indexers
	coarse   bool // the store's indexers are Coarse(indexers)

	mu sync.Mutex
	// written has the response to the last own write of each object that the cache was not seen to have reached. It has indexers
	// too, so that reads stay fast during a burst of writes.
	written cache.Indexer
	// ending has, by name, each object that this process deleted, or whose last finalizer it removed, while the cache does not show
	// that.
	ending map[string]ending
}

type ending struct {
	uid  types.UID
	gone bool // not only being deleted
}

// NewNewest reads from store and needs its indexers: they are also applied to objects that the store does not have yet.
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

// Coarse returns indexers by buckets of the values. An index by the value itself has a set per object, a third of the size of a
// trimmed object. Newest filters out the rest of the bucket.
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

// buckets is the maximum number of buckets of a coarse index: twelve objects to each with 100,000 volumes. More buckets take
// more memory, fewer have each event of the start look at more objects.
const buckets = 8192

func bucket(value string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(value)) // never fails (hash.Hash)
	return strconv.FormatUint(uint64(sum.Sum32()%buckets), 36)
}

// Wrote records the API server's response to a write, or to a read past the cache.
func (n *Newest[T]) Wrote(obj T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if reached(n.store.LastStoreSyncResourceVersion(), obj.GetResourceVersion()) {
		return // the cache has this version or a later one
	}
	if old, ok := n.ours(obj.GetName()); ok && old.GetUID() == obj.GetUID() && !older(old, obj) {
		return
	}
	_ = n.written.Update(obj) // fails only for an object without a name
}

// ours returns the response to the last own write.
func (n *Newest[T]) ours(name string) (T, bool) { return find[T](n.written, name) }

// drop forgets a response.
func (n *Newest[T]) drop(obj T) { _ = n.written.Delete(obj) } // fails only for an object without a name

// Deleted records that the API server accepted the delete of the object.
func (n *Newest[T]) Deleted(name string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ending[name] = ending{uid: uid}
}

// Ended records that an own write removed the last finalizer of an object that was being deleted, so the object no longer exists.
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

// CaughtUp forgets what the cache has reached. It is for an informer's handlers: an object that is not read after its last event
// would be kept forever.
func (n *Newest[T]) CaughtUp(name string) { n.Get(name) }

// Get returns the newest known version of the object. It is shared: do not change it.
func (n *Newest[T]) Get(name string) (T, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.get(name, n.store.LastStoreSyncResourceVersion())
}

// get is Get for a store that is at mark or later. The lock must be held before the store is read: while a reader has an old version,
// another one would see that the cache caught up, and drop the own response.
func (n *Newest[T]) get(name, mark string) (T, bool) {
	cached, ok := n.cached(name)
	return n.newest(name, cached, ok, mark)
}

// Cached returns all objects of the cache, without own writes since. They are shared.
func (n *Newest[T]) Cached() []T {
	items := n.store.List()
	found := make([]T, 0, len(items))
	for _, item := range items {
		found = append(found, item.(T))
	}
	return found
}

// All returns the newest known versions of the objects that the cache has. They are shared. It looks each of them up by name only while
// own writes are pending: with 100,000 objects, the look-ups are most of the time.
func (n *Newest[T]) All() []T {
	n.mu.Lock()
	defer n.mu.Unlock()
	mark := n.store.LastStoreSyncResourceVersion() // before the objects are read, so that no own response is dropped too early
	found := n.Cached()
	if len(n.ending) == 0 && len(n.written.ListKeys()) == 0 {
		return found
	}
	kept := found[:0]
	for _, cached := range found {
		if obj, ok := n.newest(cached.GetName(), cached, true, mark); ok {
			kept = append(kept, obj)
		}
	}
	return kept
}

// ByIndex returns, by name, the newest known versions of the objects that have the value in the index, in the cache or in a
// response to an own write.
func (n *Newest[T]) ByIndex(index, value string) map[string]T {
	return n.ByIndexWhere(index, value, func(T) bool { return true })
}

// ByIndexWhere is ByIndex for those that are wanted, of many that have the value. An object is left out that is not wanted as it is in the cache.
func (n *Newest[T]) ByIndexWhere(index, value string, wanted func(T) bool) map[string]T {
	n.mu.Lock()
	defer n.mu.Unlock()
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
	for _, item := range items {
		// A newer version that has the value, unlike the cached one, is found below.
		cached := item.(T)
		if !wanted(cached) || !n.carries(cached, index, value) {
			continue
		}
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
		if obj, ok := n.get(name, mark); ok && wanted(obj) { // another version of it may be in the cache
			found[name] = obj
		}
	}
	return found
}

// carries reports whether an object that was found by a value has it, and is not just in the same bucket.
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

// newest selects between the cached version, read when the store was at mark or later, and the own response.
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

func older(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}

// reached reports whether a cache at mark has seen the given version.
func reached(mark, version string) bool {
	order, err := resourceversion.CompareResourceVersion(mark, version)
	return err == nil && order >= 0
}
