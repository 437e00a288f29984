package attacher

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/publication"
)

// desk is a set of slots with what has been woken, in a bubble of fake time.
type desk struct {
	*slots

	wakes sync.Mutex // two calls may be overdue at the same moment
	woken []string
}

// takeWoken returns who has been woken since it was asked last.
func (d *desk) takeWoken() []string {
	d.wakes.Lock()
	defer d.wakes.Unlock()
	woken := d.woken
	d.woken = nil
	return woken
}

// pass lets time pass.
func (d *desk) pass(took time.Duration) {
	time.Sleep(took)
	synctest.Wait()
}

func newDesk(limit int) *desk {
	d := &desk{}
	d.slots = newSlots(limit, 15*time.Second, time.Second, func(key publication.Key) {
		d.wakes.Lock()
		defer d.wakes.Unlock()
		d.woken = append(d.woken, key.Volume+key.Node)
	})
	return d
}

func attachOf(volume string) want {
	return want{key: publication.Key{Volume: volume}, verb: publication.Publish, node: "n-" + volume}
}

func detachOf(volume string) want {
	return want{key: publication.Key{Volume: volume}, verb: publication.Unpublish, node: "n-" + volume}
}

func onNode(volume, node string) want {
	return want{key: publication.Key{Volume: volume}, verb: publication.Publish, node: node}
}

// ask takes a slot, or tells why there is none.
func (d *desk) ask(w want) (*slot, publication.Reason) {
	taken, no := d.take(time.Now(), w)
	return taken, no.reason
}

// must takes a slot.
func (d *desk) must(t *testing.T, w want) *slot {
	t.Helper()
	taken, no := d.ask(w)
	if taken == nil {
		t.Fatalf("%+v: no slot: %s", w, no)
	}
	return taken
}

func (d *desk) refused(t *testing.T, w want, reason publication.Reason) {
	t.Helper()
	if taken, no := d.ask(w); taken != nil || no != reason {
		t.Fatalf("%+v: slot %v, %q; want none, because of %s", w, taken != nil, no, reason)
	}
}

func (d *desk) wokeOnly(t *testing.T, want ...string) {
	t.Helper()
	if woken := d.takeWoken(); fmt.Sprint(woken) != fmt.Sprint(want) {
		t.Fatalf("woke %v, want %v", woken, want)
	}
}

func TestSlotsGoToWhoWaitsLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		a := d.must(t, attachOf("a"))
		for _, v := range []string{"b", "c", "b"} {
			d.refused(t, attachOf(v), publication.DriverBusy)
		}
		d.end(time.Now(), a, nil)
		d.wokeOnly(t, "b")
		d.refused(t, attachOf("c"), publication.DriverBusy) // it is kept for b
		b := publication.Key{Volume: "b"}
		d.giveBack(b, d.keptFor(b)) // b does not need it
		d.wokeOnly(t, "c")
		d.must(t, attachOf("c"))
	})
}

// A slot that is kept for a key while it is being worked on is not given back at
// the end of that work.
func TestSlotKeptMeanwhileStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		a, b := d.must(t, attachOf("a")), publication.Key{Volume: "b"}
		before := d.keptFor(b)
		d.refused(t, attachOf("b"), publication.DriverBusy)
		d.end(time.Now(), a, nil)
		d.giveBack(b, before)
		d.wokeOnly(t, "b")
		d.must(t, attachOf("b"))
	})
}

// A key whose attach waited in line and is a detach now waits among the detaches.
func TestSlotsForAnotherVerb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		a := d.must(t, attachOf("a"))
		d.refused(t, attachOf("b"), publication.DriverBusy)
		d.refused(t, detachOf("b"), publication.DriverBusy)
		d.refused(t, attachOf("c"), publication.DriverBusy)
		d.end(time.Now(), a, nil)
		d.wokeOnly(t, "c")
		c := d.must(t, attachOf("c"))
		d.end(time.Now(), c, nil)
		d.wokeOnly(t, "b")
		d.must(t, attachOf("b")) // wanted again: the slot that was kept for the detach will do
		d.refused(t, attachOf("d"), publication.DriverBusy)
	})
}

// Detaches leave a part of the limit to attaches, however many they are.
func TestDetachesLeaveRoomForAttaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(16)
		begun := 0
		for i := range 100 {
			if taken, _ := d.ask(detachOf(fmt.Sprint("d", i))); taken != nil {
				begun++
			}
		}
		if begun != 12 {
			t.Errorf("%d detaches in flight, want 12 of 16", begun)
		}
		for i := range 4 {
			d.must(t, attachOf(fmt.Sprint("a", i)))
		}
		// A detach that an attach waits for is part of it.
		awaited := detachOf("moving")
		awaited.awaited = true
		d = newDesk(16)
		for i := range 100 {
			d.ask(detachOf(fmt.Sprint("d", i)))
		}
		d.must(t, awaited)
	})
}

// Attaches without end do not starve detaches.
func TestDetachesGetTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(16)
		var running []*slot
		wants := map[string]want{}
		add := func(w want) {
			wants[w.key.Volume] = w
			if taken, _ := d.ask(w); taken != nil {
				running = append(running, taken)
			}
		}
		for i := range 500 {
			add(attachOf(fmt.Sprint("a", i)))
		}
		for i := range 500 {
			add(detachOf(fmt.Sprint("d", i)))
		}
		detached := 0
		for range 200 {
			first := running[0]
			running = running[1:]
			if first.verb == publication.Unpublish {
				detached++
			}
			d.end(time.Now(), first, nil)
			for _, v := range d.takeWoken() {
				running = append(running, d.must(t, wants[v]))
			}
		}
		if detached < 35 || detached > 60 {
			t.Errorf("%d of 200 calls were detaches, want about a quarter", detached)
		}
	})
}

var errFull = status.Error(codes.ResourceExhausted, "node is full")

// RESOURCE_EXHAUSTED holds back the attaches to that node: one at a time, with a
// pause after each that fails, until one succeeds.
func TestFullNodeIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(100)
		a, b := d.must(t, onNode("a", "full")), d.must(t, onNode("b", "full"))
		d.end(time.Now(), a, errFull)
		d.refused(t, onNode("c", "full"), publication.NodeHeldBack)
		if _, no := d.take(time.Now(), onNode("c", "full")); no.until != time.Now().Add(time.Second) {
			t.Errorf("look again at %v, want in a second", no.until)
		}
		d.must(t, onNode("d", "other")) // nobody else
		d.pass(time.Second)
		c := d.must(t, onNode("c", "full"))
		d.refused(t, onNode("e", "full"), publication.NodeHeldBack)
		d.end(time.Now(), b, errFull) // it began before
		d.refused(t, onNode("e", "full"), publication.NodeHeldBack)
		_ = d.takeWoken()
		d.end(time.Now(), c, errFull)
		d.wokeOnly(t, "e")
		d.refused(t, onNode("e", "full"), publication.NodeHeldBack)
		_ = d.takeWoken()
		// Something is detached from it: there is room.
		out := d.must(t, want{key: publication.Key{Volume: "x"}, verb: publication.Unpublish, node: "full"})
		d.end(time.Now(), out, nil)
		d.wokeOnly(t, "e")
		e := d.must(t, onNode("e", "full"))
		d.refused(t, onNode("f", "full"), publication.NodeHeldBack)
		_ = d.takeWoken()
		d.end(time.Now(), e, nil)
		d.wokeOnly(t, "f")
		f := d.must(t, onNode("f", "full"))
		d.end(time.Now(), f, nil)
		d.must(t, onNode("g", "full")) // held back no more
		d.must(t, onNode("h", "full"))
		if len(d.held) != 0 {
			t.Errorf("%d still held back", len(d.held))
		}
	})
}

// ABORTED for a shared volume lets one node at a time through.
func TestBusySharedVolumeIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := func(volume, node string) want {
			return want{key: publication.Key{Volume: volume, Node: node}, verb: publication.Publish, node: node}
		}
		d := newDesk(100)
		one := d.must(t, shared("v", "n1"))
		d.end(time.Now(), one, status.Error(codes.Aborted, "busy"))
		d.refused(t, shared("v", "n2"), publication.VolumeHeldBack)
		d.must(t, shared("w", "n2"))
		d.pass(time.Second)
		two := d.must(t, shared("v", "n2"))
		d.refused(t, shared("v", "n3"), publication.VolumeHeldBack)
		d.end(time.Now(), two, nil)
		d.must(t, shared("v", "n3"))
		// An exclusive volume has one call in flight anyway.
		x := d.must(t, attachOf("x"))
		d.end(time.Now(), x, status.Error(codes.Aborted, "busy"))
		d.must(t, attachOf("x"))
	})
}

// What is held back and asked for by nobody is forgotten.
func TestHoldsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(100)
		for i := range 50 {
			d.end(time.Now(), d.must(t, onNode(fmt.Sprint("v", i), fmt.Sprint("n", i))), errFull)
		}
		d.pass(2 * holdMemory)
		d.end(time.Now(), d.must(t, attachOf("z")), nil)
		if len(d.held) != 0 {
			t.Errorf("%d nodes held back for ever", len(d.held))
		}
	})
}

// Whatever happens, no slot is lost, none is given twice, everybody is woken.
func TestSlotsWalk(t *testing.T) {
	first, count := uint64(1), uint64(200)
	if text := os.Getenv("BELAY_WALK_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, count = seed, 1
	}
	for seed := first; seed < first+count; seed++ {
		broken := ""
		synctest.Test(t, func(*testing.T) { broken = walkSlots(rand.New(rand.NewPCG(seed, 11))) })
		if broken != "" {
			t.Fatalf("seed %d (replay with BELAY_WALK_SEED=%d): %s", seed, seed, broken)
		}
	}
}

func walkSlots(random *rand.Rand) string {
	limit := 1 + random.IntN(24)
	d := newDesk(limit)
	errs := []error{nil, nil, nil, errFull, status.Error(codes.Unavailable, ""), status.Error(codes.Aborted, ""), status.Error(codes.DeadlineExceeded, "")}
	wants, running, again := map[string]want{}, []*slot{}, map[string]time.Time{}
	ask := func(w want) {
		name := w.key.Volume + w.key.Node
		kept := d.keptFor(w.key)
		if random.IntN(8) == 0 { // it was woken, and needs none any more
			delete(wants, name)
			d.giveBack(w.key, kept)
			return
		}
		delete(again, name)
		taken, no := d.take(time.Now(), w)
		if taken != nil {
			delete(wants, name)
			running = append(running, taken)
			return
		}
		wants[name] = w
		if !no.until.IsZero() {
			again[name] = no.until
		}
	}
	turn := func(ending bool) string {
		d.pass(time.Duration(random.IntN(500)) * time.Millisecond)
		if len(running) > 0 && (ending || random.IntN(2) == 0) {
			i := random.IntN(len(running))
			t := running[i]
			running = append(running[:i], running[i+1:]...)
			d.end(time.Now(), t, errs[random.IntN(len(errs))])
		}
		woken := d.takeWoken()
		for _, name := range slices.Sorted(maps.Keys(again)) { // the same way each time
			if !again[name].After(time.Now()) {
				woken = append(woken, name)
			}
		}
		for _, name := range woken {
			if w, ok := wants[name]; ok {
				ask(w)
			} else {
				d.giveBack(publication.Key{Volume: name}, d.keptFor(publication.Key{Volume: name}))
			}
		}
		d.mu.Lock() // a call that is overdue changes its class by itself
		defer d.mu.Unlock()
		inFlight := [classes]int{}
		for _, t := range running {
			inFlight[t.counts]++
		}
		for c, n := range inFlight {
			if n > d.counts[c] {
				return fmt.Sprintf("%d calls of class %d in flight, %d counted", n, c, d.counts[c])
			}
		}
		if d.counts[attaching]+d.counts[detaching] > limit || d.counts[hanging] > limit {
			return fmt.Sprintf("counts %v beyond %d", d.counts, limit)
		}
		return ""
	}
	for n := range 400 {
		name := fmt.Sprint("v", n)
		ask(want{key: publication.Key{Volume: name}, verb: publication.Verb(1 + random.IntN(2)),
			node: fmt.Sprint("n", random.IntN(5)), suspect: random.IntN(6) == 0})
		if broken := turn(false); broken != "" {
			return broken
		}
	}
	for range 4000 {
		if len(wants)+len(running) == 0 {
			break
		}
		if broken := turn(true); broken != "" {
			return broken
		}
	}
	if len(wants)+len(running) > 0 {
		return fmt.Sprintf("%d wait for ever, %d in flight, counts %v", len(wants), len(running), d.counts)
	}
	if d.counts != [classes]int{} || d.inLine != [classes]int{} {
		return fmt.Sprintf("slots lost: counts %v, in line %v", d.counts, d.inLine)
	}
	return ""
}
