// Package heap limits the garbage beside a program's caches in bytes, where GOGC limits it in percent.
package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// mostMore limits how much the heap may grow between two collections, in percent of the live heap.
const mostMore = 400

// Growth is how much the heap may grow between two collections.
type Growth struct {
	// Room in bytes, whatever the size of the live heap, up to 400 % of it.
	Room uint64
	// Least in percent of the live heap: with a large one, Room alone would cause too many collections.
	Least uint64
}

// Tune sets how much the heap may grow from now on, unless gogc, the operator's own setting, overrides it. No percentage suits
// small and large clusters: one that leaves little garbage beside large caches collects a burst of attaches over and over if the
// caches are small (ADR 20 has the figures).
func Tune(growth Growth, gogc string) {
	if gogc != "" {
		return
	}
	debug.SetGCPercent(int(growth.Least)) // until the size of the live heap is known
	afterCollection(func() { debug.SetGCPercent(growth.percent(live())) })
}

// percent is by how much a heap with that many live bytes may grow.
func (g Growth) percent(live uint64) int {
	if live == 0 {
		return mostMore
	}
	return int(min(max(g.Room*100/live, g.Least), mostMore))
}

// live is the number of bytes that the last collection found alive.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// afterCollection calls f after each collection, by the cleanup of an object without references. The next one is allocated before f
// is called: an object that is allocated during a collection survives it.
func afterCollection(f func()) {
	type mark struct{ _ *byte }
	runtime.AddCleanup(&mark{}, func(struct{}) {
		afterCollection(f)
		f()
	}, struct{}{})
}
