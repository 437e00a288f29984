package attacher

import (
	"maps"
	"slices"
	"sync"

	"belay.dev/belay/internal/publication"
)

// absence holds the keys that wait for a disconnected driver. A call to it would fail, and its back-off could outlast
// the disconnection.
type absence struct {
	mu      sync.Mutex
	waiting map[publication.Key]struct{}
}

// hold reports whether a key has to wait for the driver, and remembers the key. It checks the connection under the
// lock, because the driver is present before driverBack is called: no key is missed.
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

func (w *absence) end() []publication.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	waited := slices.Collect(maps.Keys(w.waiting))
	clear(w.waiting)
	return waited
}

// driverBack enqueues the keys that waited for the driver to reconnect.
func (a *Attacher) driverBack() {
	for _, key := range a.absence.end() {
		a.queue.Add(key)
	}
}
