// Package heap decides how much garbage may pile up before the collector runs, for programs whose caches are most of what
// they hold.
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

// Tune lets the heap grow as told from now on. Go's own rule, as much again as lives, is too little for a small cluster, where
// a burst of attaches is collected over and over, and too much for the caches of a large one, which hardly change: a whole copy
// of them in garbage. An operator's own GOGC is left alone.
func Tune(growth Growth, operators string) {
	if operators != "" {
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

// afterCollection calls f after each collection: each time one finds a thing dead that
// was made for this only, the next thing is made. It is made before f is called, for
// what is made while a collection is under way outlives that one unnoticed.
func afterCollection(f func()) {
	type mark struct{ _ *byte }
	runtime.AddCleanup(&mark{}, func(struct{}) {
		afterCollection(f)
		f()
	}, struct{}{})
}
