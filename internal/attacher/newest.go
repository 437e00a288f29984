package attacher

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// newest reads objects as they were last heard of: from the watch cache, or from
// the reply to our own write if the cache has not come that far. Without it a
// decision would rest on what was so before our own last step, and the driver
// would be asked twice.
type newest[T metav1.Object] struct {
	indexer cache.Indexer
	exact   cache.Indexers // of which indexer has the coarse ones

	mu    sync.Mutex
	ahead map[string]T           // by name: newer than the cache
	gone  map[types.UID]struct{} // our write ended the object; the cache still has it
	list  *quorumList            // nil once the cache has come that far
}

// quorumList is what existed at a version.
type quorumList struct {
	version string
	uids    map[types.UID]struct{}
}

func newNewest[T metav1.Object](indexer cache.Indexer, exact cache.Indexers) *newest[T] {
	return &newest[T]{indexer: indexer, exact: exact, ahead: map[string]T{}, gone: map[types.UID]struct{}{}}
}

// get returns the newest known object of a name. The result is shared: do not
// change it.
func (n *newest[T]) get(name string) (T, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var none T
	cached, ok := n.cached(name)
	if !ok {
		return none, false
	}
	if written, ok := n.ahead[name]; ok && isNewer(written, cached) {
		cached = written
	}
	if _, over := n.gone[cached.GetUID()]; over || n.cameAndWent(cached) {
		return none, false
	}
	return cached, true
}

// listed takes a list at quorum. Until the cache has come that far it may show objects
// that had ended by then: those are not there.
func (n *newest[T]) listed(list quorumList) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = &list
}

// cameAndWent tells whether the cache shows an object that had ended before the list.
func (n *newest[T]) cameAndWent(cached T) bool {
	if n.list == nil {
		return false
	}
	if atLeast(n.indexer.LastStoreSyncResourceVersion(), n.list.version) {
		n.list = nil
		return false
	}
	_, there := n.list.uids[cached.GetUID()]
	return !there && atLeast(n.list.version, cached.GetResourceVersion())
}

// byIndex returns the newest known objects of an index value, by name: the same
// question gets the same answer.
func (n *newest[T]) byIndex(index, value string) []T {
	keys, err := n.indexer.IndexKeys(index, bucket(value))
	if err != nil { // only for an index that does not exist
		panic(err)
	}
	slices.Sort(keys)
	var objects []T
	for _, key := range keys {
		object, ok := n.get(key)
		if !ok {
			continue
		}
		if values, err := n.exact[index](object); err == nil && slices.Contains(values, value) {
			objects = append(objects, object)
		}
	}
	return objects
}

// wrote takes the reply to a write.
func (n *newest[T]) wrote(object T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// The informer's handlers run after the cache has changed. So if the object
	// is in the cache now, its deletion has still to pass through deleted, which
	// cleans up; if it is not, there is nothing to keep.
	cached, ok := n.cached(object.GetName())
	if !ok || cached.GetUID() != object.GetUID() || !isNewer(object, cached) {
		return
	}
	n.ahead[object.GetName()] = object
}

// ended takes the reply to the write that took off the last finalizer of an
// object that is being deleted: it is no more.
func (n *newest[T]) ended(object T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cached, ok := n.cached(object.GetName()); ok && cached.GetUID() == object.GetUID() {
		n.gone[object.GetUID()] = struct{}{}
	}
}

// caughtUp takes what the watch delivered.
func (n *newest[T]) caughtUp(object T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if written, ok := n.ahead[object.GetName()]; ok && !isNewer(written, object) {
		delete(n.ahead, object.GetName())
	}
}

// deleted takes a deletion that the watch delivered.
func (n *newest[T]) deleted(object T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.gone, object.GetUID())
	if written, ok := n.ahead[object.GetName()]; ok && written.GetUID() == object.GetUID() {
		delete(n.ahead, object.GetName())
	}
}

func (n *newest[T]) cached(name string) (T, bool) {
	var none T
	item, ok, err := n.indexer.GetByKey(name)
	if err != nil || !ok {
		return none, false
	}
	object, ok := item.(T)
	return object, ok
}

// isNewer compares resource versions, which are ordered across objects and time
// (KEP-5504). A version that cannot be compared is taken for newer: an object in
// hand is then used rather than lost.
func isNewer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err != nil || order > 0
}
