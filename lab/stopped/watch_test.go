package stopped

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// chronicle is when the fences of all nodes came to their moments, as they were watched: the API keeps whole seconds, and not all of them.
type chronicle struct {
	mu      sync.Mutex
	seen    []entry
	changed chan struct{} // closed, and made again, with each entry
}

type entry struct {
	node   string
	fence  types.UID
	moment Moment
	at     time.Time
}

// chronicleOf watches until the test ends.
func chronicleOf(t *testing.T, api client.WithWatch) *chronicle {
	t.Helper()
	c := &chronicle{changed: make(chan struct{})}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx, api) })
	t.Cleanup(func() { stop(); running.Wait() })
	return c
}

// run watches again when the API server ends a watch.
func (c *chronicle) run(ctx context.Context, api client.WithWatch) {
	for ctx.Err() == nil {
		fences, err := api.Watch(ctx, &fencingv1.NodeFenceList{})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		for event := range fences.ResultChan() {
			if f, ok := event.Object.(*fencingv1.NodeFence); ok && event.Type != watch.Deleted {
				c.add(f, time.Now())
			}
		}
		fences.Stop()
	}
}

// momentOf are the phases that are moments.
var momentOf = map[fencing.Phase]Moment{
	fencing.Fencing: Isolated, fencing.Tainting: Tainting, fencing.Evicting: Evicting, fencing.Detaching: Detaching, fencing.Moved: Moved,
}

// add records what is new of a fence: a watch may bring two phases as one.
func (c *chronicle) add(f *fencingv1.NodeFence, at time.Time) {
	reached := []Moment{Suspected}
	phases := fencing.Phases()
	if i := slices.Index(phases, fencing.Phase(f.Status.Phase)); i >= 0 && i <= slices.Index(phases, fencing.Moved) {
		for _, p := range phases[:i+1] {
			if m, ok := momentOf[p]; ok {
				reached = append(reached, m)
			}
		}
	}
	if len(f.Status.Intents) > 0 {
		reached = append(reached, Commanded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range reached {
		known := func(e entry) bool { return e.fence == f.UID && e.moment == m }
		if !slices.ContainsFunc(c.seen, known) {
			c.seen = append(c.seen, entry{node: f.Name, fence: f.UID, moment: m, at: at})
			close(c.changed)
			c.changed = make(chan struct{})
		}
	}
}

// reached is when a fence of a node came to a moment, for the first time since a time, and zero if none did. next is closed with the next entry.
func (c *chronicle) reached(node string, m Moment, since time.Time) (at time.Time, next <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.seen {
		if e.node == node && e.moment == m && e.at.After(since) {
			return e.at, c.changed
		}
	}
	return time.Time{}, c.changed
}
