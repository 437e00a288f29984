// Package heap bounds the garbage beside a program's caches in bytes, where GOGC bounds it in percent.
package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// mostMore bounds how much the heap may grow between two collections, in percent of what lives in it.
const mostMore = 400

// Growth is how much the heap may grow between two collections.
type Growth struct {
	// Room in bytes, whatever lives in the heap, up to 400 % of that.
	Room uint64
	// Least in percent of what lives in the heap: where that is much, what Room allows would be collected too often.
	Least uint64
}

// Tune lets the heap grow as told from now on, unless gogc, the operator's own setting, says otherwise. No percentage suits both
// a small and a large cluster: one that leaves little garbage beside large caches collects a burst of attaches over and over where
// the caches are small (ADR 20 has the figures).
func Tune(growth Growth, gogc string) {
	if gogc != "" {
		return
	}
	debug.SetGCPercent(int(growth.Least)) // until it is known what lives in the heap
	afterCollection(func() { debug.SetGCPercent(growth.percent(live())) })
}

// percent is by how much of it a heap may grow in which so many bytes live.
func (g Growth) percent(live uint64) int {
	if live == 0 {
		return mostMore
	}
	return int(min(max(g.Room*100/live, g.Least), mostMore))
}

// live is how many bytes the last collection found alive.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// afterCollection calls f after each collection, by the cleanup of an object that nothing refers to. The next one is
// allocated before f is called: an object that is allocated during a collection survives it.
func afterCollection(f func()) {
	type mark struct{ _ *byte }
	runtime.AddCleanup(&mark{}, func(struct{}) {
		afterCollection(f)
		f()
	}, struct{}{})
}
