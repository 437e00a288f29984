package attacher

import (
	"maps"
	"slices"

	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
)

// newest is kube.Newest whose lists have a fixed order.
type newest[T kube.Object[T]] struct{ *kube.Newest[T] }

func newNewest[T kube.Object[T]](indexer cache.Indexer, exact cache.Indexers) newest[T] {
	return newest[T]{kube.NewCoarse[T](indexer, exact)}
}

// byIndex returns the newest known objects of an index value, by name: the same
// question gets the same answer.
func (n newest[T]) byIndex(index, value string) []T {
	found := n.ByIndex(index, value)
	objects := make([]T, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		objects = append(objects, found[name])
	}
	return objects
}
