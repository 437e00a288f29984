package attacher

import (
	"maps"
	"slices"
	"sync"

	"belay.dev/belay/internal/publication"
)

// absence keeps what waits for a driver that is away: a call to it would only fail, and
// back off for longer than the driver takes.
type absence struct {
	mu      sync.Mutex
	waiting map[publication.Key]struct{}
}

// hold tells whether a key has to wait for the driver, and remembers it. The driver is
// asked for under the lock: that it is back is told after it is present.
func (w *absence) hold(key publication.Key, present func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if present() {
		return false
	}
	if w.waiting == nil {
		w.waiting = map[publication.Key]struct{}{}
	}
	w.waiting[key] = struct{}{}
	return true
}

// end returns the keys that waited.
func (w *absence) end() []publication.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	waited := slices.Collect(maps.Keys(w.waiting))
	clear(w.waiting)
	return waited
}

// driverBack lets the calls go that waited while the driver was away.
func (a *Attacher) driverBack() {
	for _, key := range a.absence.end() {
		a.queue.Add(key)
	}
}
