package attacher

import (
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// holdMemory is how long a node or a volume is held back for which no call is asked.
const holdMemory = time.Minute

// scope is what a driver's answer holds back: a node that is full, or a shared volume that is busy. One of them is set.
type scope struct{ node, volume string }

func (s scope) reason() publication.Reason {
	if s.node != "" {
		return publication.NodeHeldBack
	}
	return publication.VolumeHeldBack
}

// scopes are those that a call has to wait for. Unpublishing relieves a node.
func (a attempt) scopes() (found []scope) {
	if a.verb == publication.Publish {
		found = append(found, scope{node: a.node})
	}
	if a.key.Node != "" {
		found = append(found, scope{volume: a.volume.handle})
	}
	return found
}

// holds are the nodes that the driver calls full (RESOURCE_EXHAUSTED), and the shared volumes that it calls busy (ABORTED).
// To each, one call at a time is let through, a pause apart, until one succeeds.
type holds struct {
	pause time.Duration

	mu   sync.Mutex
	held map[scope]hold
}

type hold struct {
	until time.Time       // none before
	probe publication.Key // of the call that was let through, while it is in flight
}

func (h hold) probing() bool { return h.probe != publication.Key{} }

func newHolds(pause time.Duration) *holds { return &holds{pause: pause, held: map[scope]hold{}} }

// wait reports what keeps a call from beginning now.
func (h *holds) wait(now time.Time, a attempt) refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refuse(now, a)
}

func (h *holds) refuse(now time.Time, a attempt) refusal {
	for _, sc := range a.scopes() {
		switch held := h.held[sc]; {
		case held.probing():
			return refusal{sc.reason(), now.Add(h.pause)}
		case now.Before(held.until):
			return refusal{sc.reason(), held.until}
		}
	}
	return refusal{}
}

// begin lets a call through, if it need not wait. Then its end has to be noted.
func (h *holds) begin(now time.Time, a attempt) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse(now, a).reason != "" {
		return false
	}
	for _, sc := range a.scopes() {
		if held, ok := h.held[sc]; ok {
			held.probe = a.key
			h.held[sc] = held
		}
	}
	return true
}

// end takes how a call ended.
func (h *holds) end(now time.Time, a attempt, err error) {
	code, _ := csi.Code(err)
	node, volume := scope{node: a.node}, scope{volume: a.volume.handle}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sc := range a.scopes() {
		if held, ok := h.held[sc]; ok && held.probe == a.key {
			h.held[sc] = hold{until: now.Add(h.pause)}
		}
	}
	switch {
	case err == nil:
		delete(h.held, node)
		delete(h.held, volume)
	case code == codes.ResourceExhausted && a.verb == publication.Publish:
		h.hold(now, node)
	case code == codes.Aborted && a.key.Node != "":
		h.hold(now, volume)
	}
}

func (h *holds) hold(now time.Time, sc scope) {
	maps.DeleteFunc(h.held, func(_ scope, held hold) bool {
		return !held.probing() && now.Sub(held.until) > holdMemory
	})
	h.held[sc] = hold{until: now.Add(h.pause), probe: h.held[sc].probe}
}

// count tells how many are held back now.
func (h *holds) count(now time.Time) (nodes, volumes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for sc, held := range h.held {
		switch {
		case !held.probing() && !now.Before(held.until):
		case sc.node != "":
			nodes++
		default:
			volumes++
		}
	}
	return nodes, volumes
}
