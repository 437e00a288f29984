package attacher

import (
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// throttleExpiry is when an unused entry is removed.
const throttleExpiry = time.Minute

// scope is what a driver's response throttles: a full node or a busy shared volume. One of them is set.
type scope struct{ node, volume string }

func (s scope) reason() publication.Reason {
	if s.node != "" {
		return publication.NodeHeldBack
	}
	return publication.VolumeHeldBack
}

// scopes returns the scopes that may throttle a call. A detach is never throttled by its node, because it frees a slot.
func (a attempt) scopes() (found []scope) {
	if a.verb == publication.Publish {
		found = append(found, scope{node: a.node})
	}
	if a.key.Shared() {
		found = append(found, scope{volume: a.volume.handle})
	}
	return found
}

// throttle limits calls for nodes that the driver reports as full (RESOURCE_EXHAUSTED) and for shared volumes that it
// reports as busy (ABORTED). One call per pause is allowed for each until one succeeds.
type throttle struct {
	pause time.Duration

	mu   sync.Mutex
	held map[scope]time.Time // no call starts before this time
}

func newThrottle(pause time.Duration) *throttle {
	return &throttle{pause: pause, held: map[scope]time.Time{}}
}

// wait returns why a call may not start now, and when to try again.
func (h *throttle) wait(now time.Time, a attempt) callDelay {
	h.mu.Lock()
	defer h.mu.Unlock()
	no := h.refuse(now, a)
	if no.reason != "" {
		no.until = no.until.Add(h.after(no.until, a))
	}
	return no
}

// after is how long after the end of a hold a call is tried, a fifth of the pause at most. Of the calls that are held together the first one
// holds the others again, so the one that has waited longest since its last attempt comes first.
func (h *throttle) after(end time.Time, a attempt) time.Duration {
	waited := max(0, end.Sub(a.waitsSince))
	part := publication.Spread(h.pause/5, string(a.uid)) // of calls that have waited equally long
	return time.Duration(float64(part) * float64(h.pause) / float64(h.pause+waited))
}

func (h *throttle) refuse(now time.Time, a attempt) callDelay {
	for _, sc := range a.scopes() {
		if until := h.held[sc]; now.Before(until) {
			return callDelay{sc.reason(), until}
		}
	}
	return callDelay{}
}

// begin reports whether a call may start. If so, other calls in its scopes wait for another pause, but not for its end,
// because it may hang.
func (h *throttle) begin(now time.Time, a attempt) bool {
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

// end records the outcome of a call.
func (h *throttle) end(now time.Time, a attempt, err error) {
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
	case code == codes.Aborted && a.key.Shared():
		h.hold(now, volume)
	}
}

func (h *throttle) hold(now time.Time, sc scope) {
	maps.DeleteFunc(h.held, func(_ scope, until time.Time) bool { return now.Sub(until) > throttleExpiry })
	h.held[sc] = now.Add(h.pause)
}

// count returns how many nodes and volumes are throttled now.
func (h *throttle) count(now time.Time) (nodes, volumes int) {
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
