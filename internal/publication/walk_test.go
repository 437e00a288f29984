package publication

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The walk lets one volume's attachments be made and deleted, node IDs change,
// requests and replies be lost, the attacher read a stale cache, and crash, in an
// order drawn from a seed, and checks the invariants after every step.
//
//	BELAY_WALK_SEED=17 go test -run TestWalk ./internal/publication       replays one
//	BELAY_WALK_SEEDS=20000 go test -run TestWalk ./internal/publication   walks further

const (
	walkSeeds = 300
	walkSteps = 400
	// plantedSeeds is how far a planted fault is looked for, and rareSeeds how far one
	// that takes two losses in a row.
	plantedSeeds, rareSeeds = 300, 30000
)

// stored is an attachment at the API server.
type stored struct {
	a       Attachment
	version int
}

// inCall is a call in flight: the driver has acted already, or will act when it ends, or never does.
type inCall struct {
	uid       string
	step      CallDriver
	acts      bool // the driver does it
	lost      bool // and its result has no receiver
	inputs    string
	republish bool // recorded as attached: a crash loses that this one had no answer (docs/not-guaranteed.md)
	dead      bool // the process that sent it has crashed
}

// plane is the world of the walk: API server, driver, and one attacher process.
type plane struct {
	random    *rand.Rand
	exclusive bool
	now       time.Time
	nextUID   int
	version   int

	api     map[string]*stored // by UID
	nodeIDs map[string]string

	// The attacher: a cache that lags, replies to own writes, memory of calls.
	cache   map[string]stored
	written map[string]stored
	ended   map[string]bool
	calls   map[string]Call
	unsure  map[string]bool
	names   map[string]Attachment // last seen, for the gone

	flying    []*inCall
	published map[string]bool   // node IDs that the storage gives access to
	taken     map[string]bool   // node IDs that another client took the volume from
	started   time.Time         // when the process was
	drift     map[string]Drift  // by UID, in the process's memory: what a list said
	recorded  map[string]string // node ID by UID, as the finalizer was stored with it

	// stripping: people take finalizers off by force. The process remembers what
	// it called, so it does not crash in such a walk.
	stripping bool

	// forms: the IDs of a node are forms of one, the driver knows the latest one alone, and the controller records that they are the same
	// machine's.
	forms  bool
	latest map[string]string // by node

	// early: the driver answers OK to unpublish while a publish that was abandoned may still take effect. late are those.
	early bool
	late  []latePublish

	// rough: requests get lost more often, the cache lags more, and nodes come
	// back under other node IDs all the time.
	rough bool

	decide func(time.Time, Observed, Policy) Decision
	trace  []string
}

func newPlane(seed uint64, decide func(time.Time, Observed, Policy) Decision) *plane {
	p := &plane{
		random: rand.New(rand.NewPCG(seed, seed)), now: noon, decide: decide,
		api: map[string]*stored{}, nodeIDs: map[string]string{"n0": "id-n0", "n1": "id-n1", "n2": "id-n2"},
		cache: map[string]stored{}, published: map[string]bool{}, taken: map[string]bool{}, recorded: map[string]string{}, names: map[string]Attachment{},
	}
	p.exclusive = p.random.IntN(4) > 0
	p.stripping = p.random.IntN(3) == 0
	p.rough = p.random.IntN(3) == 0
	p.forms = p.random.IntN(3) == 0 && !p.stripping // which machine an attachment was for is lost with it
	p.latest = maps.Clone(p.nodeIDs)
	p.early = p.random.IntN(4) == 0 && !p.stripping
	p.restart()
	return p
}

// loses draws whether a request or a reply is lost.
func (p *plane) loses() bool {
	if p.rough {
		return p.random.IntN(4) == 0
	}
	return p.random.IntN(12) == 0
}

// restart is what a crash leaves: nothing in memory, and calls in flight continue. A new process reads the API server again before
// it decides.
func (p *plane) restart() {
	p.written, p.ended, p.calls, p.unsure = map[string]stored{}, map[string]bool{}, map[string]Call{}, map[string]bool{}
	p.drift = map[string]Drift{}
	p.cache = map[string]stored{}
	for uid, s := range p.api {
		p.cache[uid] = *s
	}
	p.started = p.now
	for _, c := range p.flying {
		c.dead = true
	}
}

func (p *plane) say(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

// observe is what the shell reads: the cache, or the reply to an own write.
func (p *plane) observe() (Observed, map[string]Attachment) {
	seen := Observed{Exclusive: p.exclusive}
	found := map[string]Attachment{}
	for _, uid := range sorted(p.cache) {
		s := p.cache[uid]
		if w, ok := p.written[uid]; ok && w.version > s.version {
			s = w
		}
		if p.ended[uid] {
			continue
		}
		a := s.a
		a.NodeID, a.Call, a.UnconfirmedWrite, a.Drift = p.nodeIDs[a.Node], p.calls[uid], p.unsure[uid], p.drift[uid]
		a.Inputs = fmt.Sprint(a.Deleting, a.NodeID)
		if p.forms && a.RecordedNodeID != "" {
			a.SameMachine = p.latest[a.Node]
		}
		if a.NodeID == "" {
			a.PublishProblem = "node unknown"
			if a.RecordedNodeID == "" {
				a.UnpublishProblem = "node unknown"
			}
		}
		found[uid] = a
		p.names[uid] = a
		seen.Attachments = append(seen.Attachments, a)
	}
	for _, uid := range sorted(p.calls) {
		if _, ok := found[uid]; !ok && !p.ended[uid] {
			was := p.names[uid]
			gone := Attachment{UID: uid, Name: was.Name, Node: was.Node, Created: was.Created, Gone: true, Call: p.calls[uid], Inputs: "gone"}
			found[uid] = gone
			seen.Attachments = append(seen.Attachments, gone)
		}
	}
	return seen, found
}

func sorted[T any](m map[string]T) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	for i := range keys { // insertion sort: few keys
		for j := i; j > 0 && keys[j] < keys[j-1]; j-- {
			keys[j], keys[j-1] = keys[j-1], keys[j]
		}
	}
	return keys
}

// work is one turn of the attacher. In shared mode each node is decided alone.
func (p *plane) work() {
	seen, found := p.observe()
	groups := map[string]Observed{}
	for _, a := range seen.Attachments {
		key := ""
		if !p.exclusive {
			key = a.Node
		}
		g := groups[key]
		g.Exclusive = p.exclusive
		g.Attachments = append(g.Attachments, a)
		groups[key] = g
	}
	for _, key := range sorted(groups) {
		decision := p.decide(p.now, groups[key], policy)
		for _, w := range decision.Waits {
			if exit, ok := exits[w.Reason]; !ok || exit.Timed == w.Until.IsZero() {
				panic(violation(fmt.Sprintf("wait without an exit: %+v", w)))
			}
		}
		for _, step := range decision.Steps {
			p.apply(found[step.Target()], step)
		}
	}
}

// write changes an object at the API server as a patch with its UID does. The
// request or its reply may be lost.
func (p *plane) write(uid string, change func(*Attachment)) bool {
	if p.loses() {
		p.say("  write to %s lost", uid)
		return false
	}
	s, ok := p.api[uid]
	if !ok {
		return false // 404, or another UID
	}
	p.version++
	change(&s.a)
	s.version = p.version
	gone := s.a.Deleting && !s.a.Finalizer
	if gone {
		delete(p.api, uid)
	}
	if p.loses() {
		p.say("  reply to write to %s lost", uid)
		return false
	}
	if _, cached := p.cache[uid]; cached {
		if gone {
			p.ended[uid] = true
		} else {
			p.written[uid] = *s
		}
	}
	return true
}

func (p *plane) apply(a Attachment, step Step) {
	p.say("step %T %+v", step, step)
	switch s := step.(type) {
	case WriteFinalizers:
		if c, ok := p.calls[a.UID]; ok && s.NodeID != a.RecordedNodeID {
			p.calls[a.UID] = c.Settle(a.RecordedNodeID)
		}
		if s.Volume && p.loses() {
			return // the volume's patch failed; the other one is not looked at
		}
		p.unsure[a.UID] = !p.write(a.UID, func(o *Attachment) {
			if o.Deleting && !o.Finalizer {
				return // the API server refuses new finalizers then
			}
			o.Finalizer, o.RecordedNodeID, o.VolumeProtected = true, s.NodeID, true
			p.recorded[a.UID] = s.NodeID
		})
	case Reread:
		if p.loses() {
			return
		}
		if now, ok := p.api[a.UID]; ok {
			p.written[a.UID], p.unsure[a.UID] = *now, false
		}
	case CallDriver:
		p.begin(a, s)
	case CancelCall:
		p.note(a.UID, func(c *Call) { c.Cancelled = true })
		p.cancelled(a.UID)
	case RecordAttached:
		if p.write(a.UID, func(o *Attachment) { o.Attached, o.AttachError = true, "" }) {
			p.note(a.UID, func(c *Call) { c.Recorded = true })
			delete(p.drift, a.UID)
		}
	case RecordDetached:
		p.write(a.UID, func(o *Attachment) { o.Attached, o.DetachError = false, "" })
	case RemoveFinalizer:
		p.removeFinalizer(a)
	case RecordError:
		if p.write(a.UID, func(o *Attachment) {
			if s.Verb == Publish {
				o.AttachError = s.Message
			} else {
				o.DetachError = s.Message
			}
		}) && s.OfCall {
			p.note(a.UID, func(c *Call) { c.Recorded = true })
		}
	case Forget:
		delete(p.calls, a.UID)
	}
}

func (p *plane) note(uid string, change func(*Call)) {
	c := p.calls[uid]
	change(&c)
	p.calls[uid] = c
}

// violation is an invariant that was broken.
type violation string

func (p *plane) begin(a Attachment, s CallDriver) {
	if o, ok := p.api[a.UID]; s.Verb == Publish && (ok || !p.stripping) && (!ok || !o.a.Finalizer || !o.a.VolumeProtected) {
		panic(violation("S10: publish sent without the finalizer stored on that UID"))
	}
	for _, f := range p.flying {
		if !f.dead && (p.exclusive || f.uid == a.UID) {
			panic(violation("S4: two calls in flight"))
		}
	}
	if s.Verb == Publish && p.exclusive {
		for id := range p.published {
			if id != p.place(s.NodeID) {
				panic(violation("S1: publish to " + s.NodeID + " while published to " + id))
			}
		}
		for _, f := range p.flying {
			if f.step.Verb == Publish && p.place(f.step.NodeID) != p.place(s.NodeID) && f.acts {
				panic(violation("S1: publish to " + s.NodeID + " while one to " + f.step.NodeID + " may still be carried out"))
			}
		}
	}
	if c := p.calls[a.UID]; s.Verb == Publish && c.confirmed(Publish, s.NodeID) && !c.Recorded {
		panic(violation("once: publish repeated although the driver had confirmed it"))
	}
	if before := p.calls[a.UID]; p.early && a.Finalizer && !a.Attached && !a.Untouched && before.Verb == NoCall {
		p.calls[a.UID] = before.DoubtUntil(p.started.Add(earlyFor), false)
	}
	if a.Elsewhere(s) {
		p.calls[a.UID] = p.calls[a.UID].BeginElsewhere(s.NodeID, a.Inputs)
	} else {
		p.calls[a.UID] = p.calls[a.UID].Begin(s.Verb, s.NodeID, a.Inputs, a.Attached)
	}
	p.calls[a.UID] = p.calls[a.UID].BegunAt(p.now)
	p.flying = append(p.flying, &inCall{uid: a.UID, step: s, inputs: a.Inputs, republish: a.Attached,
		acts: p.random.IntN(8) > 0, lost: p.random.IntN(6) == 0})
}

// cancelled lets a call end for the process: the driver, which works on one call at a time, may still do it, before the next one.
func (p *plane) cancelled(uid string) {
	for i, f := range p.flying {
		if f.uid == uid && !f.dead {
			f.lost = true
			p.land(i)
			return
		}
	}
}

// land ends a call in flight.
func (p *plane) land(i int) {
	f := p.flying[i]
	p.flying = append(p.flying[:i], p.flying[i+1:]...)
	place, unknown := p.place(f.step.NodeID), p.unknown(f.step.NodeID)
	f.acts = f.acts && !unknown
	uncertain := f.step.Verb == Publish && (!f.acts || f.lost || f.dead) && !unknown && !f.republish
	if late := p.early && uncertain && p.random.IntN(2) == 0; late {
		f.acts = false
		p.late = append(p.late, latePublish{place, p.now.Add(earlyFor)})
	}
	if f.acts {
		if f.step.Verb == Publish {
			p.published[place] = true
			delete(p.taken, place)
			p.late = slices.DeleteFunc(p.late, func(l latePublish) bool { return l.place == place }) // this is it
		} else {
			delete(p.published, place)
		}
	}
	p.say("land %v %s of %s: acts %v lost %v dead %v", f.step.Verb, f.step.NodeID, f.uid, f.acts, f.lost, f.dead)
	if f.dead {
		return
	}
	p.note(f.uid, func(c *Call) {
		if f.acts && !f.lost {
			*c = c.Confirm(p.now)
		} else {
			*c = c.Fail(p.now, "lost", false)
			c.NotFound = unknown
			if p.early && uncertain {
				*c = c.DoubtUntil(p.now.Add(earlyFor), false)
			}
		}
	})
}

func (p *plane) removeFinalizer(a Attachment) {
	if _, ok := p.api[a.UID]; !ok {
		return // 404
	}
	id := p.recorded[a.UID]
	if p.published[p.place(id)] && !p.heldByAnother(a.UID, id) {
		panic(violation("S5: finalizer off while published to " + id))
	}
	p.note(a.UID, func(c *Call) {
		if p.unpublished(*c, id) || p.forms && p.heldByAnother(a.UID, id) {
			*c = c.Settle(id)
		}
	})
	if !p.calls[a.UID].unpublishedFrom(id) {
		panic(violation("S5: finalizer off without a confirmed unpublish of " + id))
	}
	if p.write(a.UID, func(o *Attachment) { o.Finalizer = false }) {
		delete(p.calls, a.UID)
	}
}

// heldByAnother: another attachment of the same node ID holds the publication.
func (p *plane) heldByAnother(uid, nodeID string) bool {
	for other, o := range p.api {
		if other != uid && o.a.Finalizer && p.place(o.a.RecordedNodeID) == p.place(nodeID) {
			return true
		}
	}
	return false
}

// latePublish takes effect before its time, or not at all.
type latePublish struct {
	place  string
	before time.Time
}

// takeEffect carries out the publishes that are late, those that are due by a time, or any of them.
func (p *plane) takeEffect(by time.Time) {
	p.late = slices.DeleteFunc(p.late, func(l latePublish) bool {
		if by.Before(l.before) && p.random.IntN(3) > 0 {
			return false
		}
		p.say("a late publish to %s takes effect", l.place)
		p.published[l.place] = true
		return true
	})
}

// earlyFor is how long a publish may be late.
const earlyFor = 5 * time.Second

// place is what the storage calls the node.
func (p *plane) place(nodeID string) string {
	if parts := strings.SplitN(nodeID, "-", 3); p.forms && len(parts) > 1 {
		return "id-" + parts[1]
	}
	return nodeID
}

// unknown: the driver knows the node by another ID now.
func (p *plane) unknown(nodeID string) bool {
	node := strings.TrimPrefix(p.place(nodeID), "id-")
	return p.forms && p.latest[node] != nodeID
}

// unpublished: the driver has confirmed an unpublish from the place, under whatever ID, and was asked for nothing there since.
func (p *plane) unpublished(c Call, nodeID string) bool {
	for _, last := range slices.Backward(append(slices.Clone(c.Previous), c)) {
		if p.place(last.NodeID) == p.place(nodeID) && (last.Verb == Publish || last.Confirmed) {
			return last.confirmed(Unpublish, last.NodeID)
		}
	}
	return false
}

// step does one thing that can happen.
func (p *plane) step() {
	switch n := p.random.IntN(21); {
	case n == 20:
		p.list()
	case n < 2:
		p.create()
	case n < 4:
		p.remove()
	case n < 10:
		p.work()
	case n < 13 && p.rough && p.random.IntN(4) > 0:
		p.renode()
	case n < 14:
		p.deliver(p.random.IntN(3) == 0)
	case n < 17:
		if len(p.flying) > 0 {
			p.land(p.random.IntN(len(p.flying)))
		}
	case n == 17:
		next := p.now.Add(time.Duration(p.random.IntN(3000)) * time.Millisecond)
		p.takeEffect(next)
		p.now = next
	case n == 18 && p.stripping:
		if uids := sorted(p.api); len(uids) > 0 && p.random.IntN(3) == 0 {
			uid := uids[p.random.IntN(len(uids))]
			p.say("%s is removed by force", uid)
			delete(p.api, uid)
		}
	case n == 18:
		// A crash. What the dead process sent lands before its successor's first
		// call: a driver works on one call per volume at a time (CSI spec), so a
		// later call for it waits behind or is answered ABORTED.
		if p.random.IntN(4) == 0 {
			for len(p.flying) > 0 {
				p.land(0)
			}
			p.say("crash")
			p.restart()
		}
	case n == 19:
		p.renode()
	}
}

// list may let another client take the volume from a node, and makes the process believe of an attachment that the driver lists it
// as not published: the list may be right or wrong.
func (p *plane) list() {
	uids := sorted(p.api)
	if len(uids) == 0 {
		return
	}
	s := p.api[uids[p.random.IntN(len(uids))]]
	if !s.a.Attached || s.a.Deleting {
		return
	}
	if p.random.IntN(2) == 0 {
		p.say("another client takes the volume from %s", s.a.RecordedNodeID)
		delete(p.published, p.place(s.a.RecordedNodeID))
		p.taken[p.place(s.a.RecordedNodeID)] = true
	}
	if p.random.IntN(2) == 0 {
		p.say("%s is listed as not published", s.a.UID)
		p.drift[s.a.UID] = NotPublished
	}
}

// renode lets a node vanish or come back, under one of two node IDs.
func (p *plane) renode() {
	node := fmt.Sprint("n", p.random.IntN(3))
	if p.random.IntN(4) == 0 {
		p.nodeIDs[node] = ""
	} else {
		p.nodeIDs[node] = fmt.Sprintf("id-%s-%d", node, p.random.IntN(2))
		p.latest[node] = p.nodeIDs[node]
	}
	p.say("node %s is now %q", node, p.nodeIDs[node])
}

func (p *plane) create() {
	node := fmt.Sprint("n", p.random.IntN(3))
	for _, s := range p.api {
		if s.a.Node == node {
			return // the name is taken
		}
	}
	p.nextUID++
	p.version++
	uid := fmt.Sprint("u", p.nextUID)
	p.api[uid] = &stored{a: Attachment{UID: uid, Name: "va-" + node, Node: node, Created: noon.Add(time.Duration(p.nextUID/2) * time.Second)}, version: p.version}
	p.say("create %s for %s", uid, node)
}

func (p *plane) remove() {
	uids := sorted(p.api)
	if len(uids) == 0 {
		return
	}
	s := p.api[uids[p.random.IntN(len(uids))]]
	p.version++
	s.version = p.version
	s.a.Deleting = true
	p.say("delete %s", s.a.UID)
	if !s.a.Finalizer {
		delete(p.api, s.a.UID)
	}
}

// deliver brings the cache up to date, in part only if asked: events come in
// order of their version, so a part is a prefix.
func (p *plane) deliver(part bool) {
	limit := p.version
	if part {
		limit -= p.random.IntN(4)
	}
	for uid, s := range p.api {
		if s.version <= limit {
			p.cache[uid] = *s
		}
	}
	if part {
		return
	}
	for uid := range p.cache {
		if _, ok := p.api[uid]; !ok {
			delete(p.cache, uid)
			delete(p.ended, uid)
			delete(p.written, uid)
			delete(p.unsure, uid)
		}
	}
}

// settle stops the faults and checks that everything wanted becomes attached
// and everything else goes away.
func (p *plane) settle() string {
	for node := range p.nodeIDs {
		p.nodeIDs[node] = "id-" + node
		p.latest[node] = p.nodeIDs[node]
	}
	p.takeEffect(p.now.Add(earlyFor))
	p.random = rand.New(calm{})
	for turn := range 400 {
		for uid, s := range p.api {
			if turn == 200 && s.a.Attached && !p.published[p.place(s.a.RecordedNodeID)] {
				p.drift[uid] = NotPublished
			}
		}
		for len(p.flying) > 0 {
			p.flying[0].acts, p.flying[0].lost = true, false
			p.land(0)
		}
		p.deliver(false)
		p.work()
		p.now = p.now.Add(10 * time.Minute)
	}
	live, attached := 0, 0
	for _, s := range p.api {
		if s.a.Deleting {
			return fmt.Sprintf("liveness: %s is still there: %+v", s.a.UID, s.a)
		}
		live++
		if s.a.Attached {
			attached++
			// Not repaired while the node has another ID.
			id := s.a.RecordedNodeID
			if unmended := p.taken[p.place(id)] && p.nodeIDs[s.a.Node] != id; !p.published[p.place(id)] && !unmended {
				return fmt.Sprintf("%s is recorded as attached and not published", s.a.UID)
			}
		}
	}
	if want := min(live, 1); p.exclusive && attached < want || !p.exclusive && attached != live {
		return fmt.Sprintf("liveness: %d of %d attached", attached, live)
	}
	for id := range p.published {
		held := false
		for _, s := range p.api {
			held = held || p.place(s.a.RecordedNodeID) == id
		}
		for _, c := range p.calls {
			// Removed by force after it was recorded, and no other attachment wants the volume.
			held = held || p.stripping && p.place(c.NodeID) == id && (c.Confirmed && c.Recorded || c.Republish)
		}
		if !held {
			return "orphan: published to " + id + " without a caller"
		}
	}
	return ""
}

// calm is a source in which no fault is drawn.
type calm struct{}

func (calm) Uint64() uint64 { return ^uint64(0) }

// walk runs one seed; broken says which invariant broke.
func walk(seed uint64, decide func(time.Time, Observed, Policy) Decision) (broken string, trace []string) {
	p := newPlane(seed, decide)
	defer func() {
		trace = p.trace
		switch v := recover().(type) {
		case nil:
		case violation:
			broken = string(v)
		default:
			panic(v)
		}
	}()
	for range walkSteps {
		p.step()
	}
	return p.settle(), nil
}

// seeds reads the first seed to walk, and how many, from BELAY_WALK_SEED and
// BELAY_WALK_SEEDS.
func seeds(t *testing.T, otherwise uint64) (first, count uint64) {
	t.Helper()
	number := func(variable string, otherwise uint64) uint64 {
		s := os.Getenv(variable)
		if s == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if seed := number("BELAY_WALK_SEED", 0); seed != 0 {
		return seed, 1
	}
	return 1, number("BELAY_WALK_SEEDS", otherwise)
}

func TestWalk(t *testing.T) {
	first, count := seeds(t, walkSeeds)
	for seed := first; seed < first+count; seed++ {
		if broken, trace := walk(seed, Decide); broken != "" {
			for _, line := range trace[max(0, len(trace)-60):] {
				t.Log(line)
			}
			t.Fatalf("seed %d (replay with BELAY_WALK_SEED=%d): %s", seed, seed, broken)
		}
	}
}

// The walk must find a planted fault for each invariant: each of these changes the input of Decide as if one rule were missing.
func TestWalkFindsPlantedFaults(t *testing.T) {
	lying := func(lie func(*Observed)) func(time.Time, Observed, Policy) Decision {
		return func(now time.Time, seen Observed, policy Policy) Decision {
			seen.Attachments = append([]Attachment(nil), seen.Attachments...)
			lie(&seen)
			return Decide(now, seen, policy)
		}
	}
	each := func(lie func(*Attachment)) func(*Observed) {
		return func(seen *Observed) {
			for i := range seen.Attachments {
				lie(&seen.Attachments[i])
			}
		}
	}
	tests := map[string]struct {
		lie  func(*Observed)
		want string
	}{
		"other attachments are no obstacle": {lie: func(seen *Observed) { seen.Exclusive = false }, want: "S1"},
		"an uncertain attachment is taken for detached": {lie: func(seen *Observed) {
			for i, a := range seen.Attachments {
				if !a.Attached && !a.Deleting && a.Call.failed() && len(seen.Attachments) > 1 && i == 0 {
					seen.Attachments = seen.Attachments[1:]
					return
				}
			}
		}, want: "S1"},
		"calls in flight are not seen": {lie: each(func(a *Attachment) {
			if a.Call.InFlight {
				a.Call = Call{}
			}
		}), want: "S4"},
		"an unpublish that failed is taken for done": {lie: each(func(a *Attachment) {
			a.Call.Confirmed = a.Call.Confirmed || a.Call.Verb == Unpublish && !a.Call.InFlight
		}), want: "S5"},
		"the node's present id is taken for the recorded one": {lie: each(func(a *Attachment) {
			if a.NodeID != "" && a.RecordedNodeID != "" {
				a.RecordedNodeID = a.NodeID
			}
		}), want: "S"},
		"finalizers are taken for stored": {lie: each(func(a *Attachment) {
			if a.NodeID != "" && !a.Deleting {
				a.Finalizer, a.VolumeProtected, a.RecordedNodeID = true, true, a.NodeID
			}
		}), want: "S10"},
		"an OK that came too early is taken for the end": {lie: each(func(a *Attachment) {
			a.Call.Doubt = nil
		}), want: "S"},
		"the last call's result is forgotten": {lie: each(func(a *Attachment) {
			if !a.Call.InFlight {
				a.Call = Call{}
			}
		}), want: "once"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= plantedSeeds; seed++ {
				if broken, _ := walk(seed, lying(tt.lie)); len(broken) >= len(tt.want) && broken[:len(tt.want)] == tt.want {
					t.Logf("seed %d: %s", seed, broken)
					return
				}
			}
			t.Errorf("%d seeds did not find it (%s)", plantedSeeds, tt.want)
		})
	}
}
