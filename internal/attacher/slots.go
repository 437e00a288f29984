package attacher

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

const (
	// detachShare: detaches leave one part in so many of the limit to attaches, and
	// have as much themselves whatever the attaches do.
	detachShare = 4
	// unknownPatience bounds how long a call may take before it counts as one that
	// hangs, while it is not known how long calls take.
	unknownPatience = 10 * time.Second
	// holdMemory is how long a node or a volume is held back that nobody asks for.
	holdMemory = time.Minute
)

// class is what a call counts toward.
type class int

const (
	attaching class = iota
	detaching
	// hanging: the call has taken far longer than most do, or the last one for its
	// volume did. It counts toward a bound of its own.
	hanging
	classes
)

// want is a call that a key would like to send.
type want struct {
	key     publication.Key
	verb    publication.Verb
	node    string
	suspect bool // the last call for it hung
	awaited bool // an attach waits for this detach
}

func (w want) class() class {
	switch {
	case w.suspect:
		return hanging
	case w.verb == publication.Unpublish && !w.awaited:
		return detaching
	default:
		return attaching
	}
}

// scope is what a driver's answer holds back beyond its own volume: a node that is
// full, or a shared volume that is busy.
type scope struct{ node, volume string }

func (s scope) reason() publication.Reason {
	if s.node != "" {
		return publication.NodeHeldBack
	}
	return publication.VolumeHeldBack
}

// scopes are those that a call has to do with. Unpublishing relieves a node.
func (w want) scopes() []scope {
	var found []scope
	if w.verb == publication.Publish {
		found = append(found, scope{node: w.node})
	}
	if w.key.Node != "" {
		found = append(found, scope{volume: w.key.Volume})
	}
	return found
}

// hold lets one call at a time through to a node or a volume.
type hold struct {
	until   time.Time // none before
	busy    bool      // one is in flight
	waiting []publication.Key
}

// slot is the right to have one call in flight.
type slot struct {
	want
	counts   class // toward what it counts now
	begun    time.Time
	inFlight int     // calls, when it began
	probes   []scope // of which it is the one call that is let through
	timer    *time.Timer
	ended    bool
}

// refusal is why a call may not begin now; zero until if only a wake can tell.
type refusal struct {
	reason publication.Reason
	until  time.Time
}

// place is a key's place in line, or the slot that is kept for it.
type place struct {
	class class
	kept  bool
	nth   int
}

// slots says which calls may be in flight. Those of the adaptive limit are shared
// between attaches and detaches so that neither starves. A call that hangs leaves
// the limit, so that it holds only its own volume; as many again may hang as the
// limit allows, so that their number is bounded. Keys that find no slot wait in
// line and are woken when one is kept for them.
type slots struct {
	wake    func(publication.Key)
	timeout time.Duration // of a call
	pause   time.Duration // between two calls to a node or a volume that is held back

	mu     sync.Mutex
	limit  *publication.Limit
	counts [classes]int // in flight, and kept for keys that have been woken
	lines  [classes][]publication.Key
	places map[publication.Key]place
	inLine [classes]int
	held   map[scope]*hold
	turn   int // of attaches and detaches, where both wait
	nth    int
}

func newSlots(limit int, timeout, pause time.Duration, wake func(publication.Key)) *slots {
	return &slots{
		wake: wake, timeout: timeout, pause: pause, limit: publication.NewLimit(limit),
		places: map[publication.Key]place{}, held: map[scope]*hold{},
	}
}

// take gives a key a slot, or tells why not; the key is woken when that may have
// changed.
func (s *slots) take(now time.Time, w want) (*slot, refusal) {
	s.mu.Lock()
	taken, no := s.admit(now, w)
	woken := s.offer(now)
	s.mu.Unlock()
	s.wakeAll(woken)
	return taken, no
}

func (s *slots) admit(now time.Time, w want) (*slot, refusal) {
	c := w.class()
	at, placed := s.places[w.key]
	if placed && (at.kept || at.class != c) {
		s.leaveLine(w.key)
		placed = false
	}
	if no := s.heldBack(now, w); no.reason != "" {
		s.leaveLine(w.key)
		return nil, no
	}
	kept := at.kept && at.class == c
	if !kept && (s.inLine[c] > 0 || !s.mayBegin(now, c)) {
		if !placed {
			s.join(w.key, c)
		}
		return nil, refusal{reason: publication.DriverBusy}
	}
	return s.begin(now, w), refusal{}
}

// heldBack tells whether a call has to wait for a node or a volume.
func (s *slots) heldBack(now time.Time, w want) refusal {
	for _, sc := range w.scopes() {
		h := s.held[sc]
		if h == nil || !h.busy && !now.Before(h.until) {
			continue
		}
		if !slices.Contains(h.waiting, w.key) {
			h.waiting = append(h.waiting, w.key)
		}
		if h.busy {
			return refusal{reason: sc.reason()}
		}
		return refusal{reason: sc.reason(), until: h.until}
	}
	return refusal{}
}

// begin makes a slot.
func (s *slots) begin(now time.Time, w want) *slot {
	c := w.class()
	s.counts[c]++
	taken := &slot{want: w, counts: c, begun: now, inFlight: max(1, s.counted())}
	for _, sc := range w.scopes() {
		if h := s.held[sc]; h != nil {
			h.busy = true
			h.waiting = slices.DeleteFunc(h.waiting, func(key publication.Key) bool { return key == w.key })
			taken.probes = append(taken.probes, sc)
		}
	}
	if c != hanging {
		taken.timer = time.AfterFunc(s.patience(), func() { s.overdue(taken) })
	}
	return taken
}

// counted is how many calls count toward the limit.
func (s *slots) counted() int { return s.counts[attaching] + s.counts[detaching] }

// mayBegin tells whether one more call of a class may be in flight.
func (s *slots) mayBegin(now time.Time, c class) bool {
	limit := s.limit.Calls(now)
	free, share := limit-s.counted(), limit/detachShare
	switch c {
	case hanging:
		return s.counts[hanging] < limit
	case detaching:
		return free > share || free > 0 && s.counts[detaching] < share
	default:
		return free > 0
	}
}

func (s *slots) join(key publication.Key, c class) {
	s.nth++
	s.places[key] = place{class: c, nth: s.nth}
	s.lines[c] = append(s.lines[c], key)
	s.inLine[c]++
}

// leaveLine drops a key's place, or gives up the slot that is kept for it. Its entry in
// the line is passed over later.
func (s *slots) leaveLine(key publication.Key) {
	at, ok := s.places[key]
	if !ok {
		return
	}
	delete(s.places, key)
	if at.kept {
		s.counts[at.class]--
	} else {
		s.inLine[at.class]--
	}
}

// offer keeps slots for those who are first in line, and returns their keys.
func (s *slots) offer(now time.Time) (woken []publication.Key) {
	for {
		c, ok := s.next(now)
		if !ok {
			return woken
		}
		key := s.lines[c][0]
		s.lines[c] = s.lines[c][1:]
		at, placed := s.places[key]
		if !placed || at.kept || at.class != c {
			continue // it has left the line
		}
		s.inLine[c]--
		s.counts[c]++
		at.kept = true
		s.places[key] = at
		woken = append(woken, key)
	}
}

// next is the class whose first in line gets the next slot.
func (s *slots) next(now time.Time) (c class, ok bool) {
	ready := func(c class) bool { return len(s.lines[c]) > 0 && s.mayBegin(now, c) }
	switch {
	case ready(hanging):
		return hanging, true
	case ready(attaching) && ready(detaching):
		s.turn++
		if s.turn%detachShare == 0 {
			return detaching, true
		}
		return attaching, true
	case ready(attaching):
		return attaching, true
	default:
		return detaching, ready(detaching)
	}
}

// keptFor tells which slot is kept for a key; 0 if none is.
func (s *slots) keptFor(key publication.Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.places[key]; at.kept {
		return at.nth
	}
	return 0
}

// giveBack returns the slot that was kept for a key which did not need it.
func (s *slots) giveBack(key publication.Key, nth int) {
	s.mu.Lock()
	var woken []publication.Key
	if at := s.places[key]; at.kept && at.nth == nth {
		s.leaveLine(key)
		woken = s.offer(time.Now())
	}
	s.mu.Unlock()
	s.wakeAll(woken)
}

// patience is how long a call may take before it counts as one that hangs.
func (s *slots) patience() time.Duration {
	if known := s.limit.Patience(); known > 0 {
		return known
	}
	return min(s.timeout/2, unknownPatience)
}

// overdue takes a call out of the limit that has taken too long, if by now it is
// still too long, and there is room for one more that hangs.
func (s *slots) overdue(t *slot) {
	now := time.Now()
	s.mu.Lock()
	var woken []publication.Key
	patience := s.patience()
	switch age := now.Sub(t.begun); {
	case t.ended:
	case age < patience:
		t.timer.Reset(patience - age)
	case !s.mayBegin(now, hanging):
		t.timer.Reset(patience)
	default:
		s.counts[t.counts]--
		t.counts = hanging
		s.counts[hanging]++
		woken = s.offer(now)
	}
	s.mu.Unlock()
	s.wakeAll(woken)
}

// cancel returns a slot whose call was not sent.
func (s *slots) cancel(t *slot) {
	now := time.Now()
	s.mu.Lock()
	s.free(t)
	woken := s.release(now, t, false)
	woken = append(woken, s.offer(now)...)
	s.mu.Unlock()
	s.wakeAll(woken)
}

// end returns a slot, tells the limit what its call tells, and whether the call
// hung.
func (s *slots) end(now time.Time, t *slot, err error) (hung bool) {
	code, _ := csi.Code(err)
	s.mu.Lock()
	ended := publication.Ended{
		Volume: t.key.Volume, Verb: t.verb, Sign: t.sign(err, code), Begun: t.begun, Ended: now,
		InFlight: t.inFlight, LeftInFlight: s.counted(),
	}
	hung = err != nil && (code == codes.DeadlineExceeded || t.counts == hanging && !t.suspect)
	s.free(t)
	s.limit.End(ended)
	woken := s.answered(now, t, err, code)
	woken = append(woken, s.offer(now)...)
	s.mu.Unlock()
	s.wakeAll(woken)
	return hung
}

// sign is what the end of a call says about the driver.
func (t *slot) sign(err error, code codes.Code) publication.Sign {
	switch {
	case err == nil:
		return publication.Answered
	case code == codes.Unavailable:
		return publication.Overloaded
	case code == codes.DeadlineExceeded && t.counts != hanging:
		return publication.Silent
	default:
		return publication.NoSign
	}
}

func (s *slots) free(t *slot) {
	t.ended = true
	s.counts[t.counts]--
	if t.timer != nil {
		t.timer.Stop()
	}
}

// answered draws the conclusions for the node and the volume of a call, and returns
// who may ask again.
func (s *slots) answered(now time.Time, t *slot, err error, code codes.Code) (woken []publication.Key) {
	switch {
	case code == codes.ResourceExhausted && t.verb == publication.Publish:
		s.hold(scope{node: t.node}, now)
	case code == codes.Aborted && t.key.Node != "":
		s.hold(scope{volume: t.key.Volume}, now)
	case err == nil && t.verb == publication.Unpublish:
		if h := s.held[scope{node: t.node}]; h != nil { // there is room again
			h.until = now
			woken = h.wake()
		}
	}
	woken = append(woken, s.release(now, t, err == nil)...)
	for sc, h := range s.held {
		if !h.busy && len(h.waiting) == 0 && now.Sub(h.until) > holdMemory {
			delete(s.held, sc)
		}
	}
	return woken
}

func (s *slots) hold(sc scope, now time.Time) {
	if s.held[sc] == nil {
		s.held[sc] = &hold{}
	}
	s.held[sc].until = now.Add(s.pause)
}

// release lets the next call through to what a call was the only one of. Where
// nobody waits after one that succeeded, nothing is held back any more.
func (s *slots) release(now time.Time, t *slot, succeeded bool) (woken []publication.Key) {
	for _, sc := range t.probes {
		h := s.held[sc]
		h.busy = false
		if succeeded && len(h.waiting) == 0 && !h.until.After(now) {
			delete(s.held, sc)
			continue
		}
		woken = append(woken, h.wake()...)
	}
	return woken
}

// wake takes all who wait: the first to ask is let through.
func (h *hold) wake() (woken []publication.Key) {
	woken, h.waiting = h.waiting, nil
	return woken
}

func (s *slots) wakeAll(keys []publication.Key) {
	for _, key := range keys {
		s.wake(key)
	}
}

// flow counts the calls in flight, and what is held back.
func (s *slots) flow(now time.Time) telemetry.Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := telemetry.Calls{
		Limit: s.limit.Calls(now), Attaching: s.counts[attaching], Detaching: s.counts[detaching], Hanging: s.counts[hanging],
	}
	for sc, h := range s.held {
		if !h.busy && len(h.waiting) == 0 && !now.Before(h.until) {
			continue
		}
		if sc.node != "" {
			f.NodesHeld++
		} else {
			f.VolumesHeld++
		}
	}
	return f
}
