package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The heap may grow by room between two collections, whatever lives in it, within the
// bounds in percent. Go's own rule, as much again as lives, is too little for a small
// cluster, where a burst of attaches is collected over and over, and too much for the
// caches of a large one, which hardly change: a whole copy of them in garbage.
const (
	room                = 64 << 20
	leastMore, mostMore = 40, 400 // percent of what lives in the heap
)

// tuneHeap keeps the collector to that from now on, and looks again after each
// collection. An operator's own GOGC is left alone.
func tuneHeap(operators string) {
	if operators != "" {
		return
	}
	debug.SetGCPercent(leastMore) // until it is known what lives in the heap
	afterCollection(func() { debug.SetGCPercent(more(live())) })
}

// more is by how many percent a heap may grow in which so many bytes live.
func more(live uint64) int {
	if live == 0 {
		return mostMore
	}
	return int(min(max(room*100/live, leastMore), mostMore))
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
// was made for this only, the next thing is made.
func afterCollection(f func()) {
	type mark struct{ _ *byte }
	runtime.AddCleanup(&mark{}, func(struct{}) {
		f()
		afterCollection(f)
	}, struct{}{})
}
