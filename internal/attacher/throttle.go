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
// To each, one call is let through after each pause, until one succeeds.
type holds struct {
	pause time.Duration

	mu   sync.Mutex
	held map[scope]time.Time // until when no further call begins
}

func newHolds(pause time.Duration) *holds { return &holds{pause: pause, held: map[scope]time.Time{}} }

// wait reports what keeps a call from beginning now.
func (h *holds) wait(now time.Time, a attempt) refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refuse(now, a)
}

func (h *holds) refuse(now time.Time, a attempt) refusal {
	for _, sc := range a.scopes() {
		if until := h.held[sc]; now.Before(until) {
			return refusal{sc.reason(), until}
		}
	}
	return refusal{}
}

// begin lets a call through, if it need not wait, and what else is held back for the same reason waits for another pause: not
// for its end, for it may hang.
func (h *holds) begin(now time.Time, a attempt) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse(now, a).reason != "" {
		return false
	}
	for _, sc := range a.scopes() {
		if _, ok := h.held[sc]; ok {
			h.held[sc] = now.Add(h.pause)
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
	maps.DeleteFunc(h.held, func(_ scope, until time.Time) bool { return now.Sub(until) > holdMemory })
	h.held[sc] = now.Add(h.pause)
}

// count tells how many are held back now.
func (h *holds) count(now time.Time) (nodes, volumes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for sc, until := range h.held {
		switch {
		case !now.Before(until):
		case sc.node != "":
			nodes++
		default:
			volumes++
		}
	}
	return nodes, volumes
}
