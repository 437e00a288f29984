package publication

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const testCeiling = 256

// wave ends n calls of different volumes that were in flight together.
func wave(l *Limit, at time.Time, n int, took time.Duration, sign Sign) time.Time {
	ended := at.Add(took)
	for i := range n {
		l.End(Ended{Volume: fmt.Sprint("pv", i), Verb: Publish, Sign: sign, Begun: at, Ended: ended, InFlight: i + 1, LeftInFlight: n - i})
	}
	return ended.Add(time.Millisecond)
}

func TestLimit(t *testing.T) {
	second := time.Second
	tests := map[string]struct {
		happens  func(l *Limit, at time.Time) time.Time
		from, to int // what the limit may be then
	}{
		"nothing known": {func(_ *Limit, at time.Time) time.Time { return at }, 256, 256},
		"every call takes two seconds": {func(l *Limit, at time.Time) time.Time {
			for range 10 {
				at = wave(l, at, 200, 2*second, Answered)
			}
			return at
		}, 256, 256},
		"one volume takes far longer than all others": {func(l *Limit, at time.Time) time.Time {
			for range 50 {
				next := wave(l, at, 30, second, Answered)
				l.End(Ended{Volume: "slow", Verb: Publish, Sign: Answered, Begun: at, Ended: at.Add(14 * second), InFlight: 31})
				at = next
			}
			return at
		}, 256, 256},
		"one volume is answered UNAVAILABLE again and again": {func(l *Limit, at time.Time) time.Time {
			for range 100 {
				l.End(Ended{Volume: "pv0", Verb: Publish, Sign: Overloaded, Begun: at, Ended: at, InFlight: 200})
				at = at.Add(second)
			}
			return at
		}, 256, 256},
		"UNAVAILABLE for all that were in flight": {func(l *Limit, at time.Time) time.Time {
			return wave(l, at, 200, second, Overloaded)
		}, 128, 128}, // once: they all began before the cut
		"UNAVAILABLE for one in four": {func(l *Limit, at time.Time) time.Time {
			wave(l, at, 12, second, Answered)
			for i := range 4 {
				l.End(Ended{Volume: fmt.Sprint("bad", i), Verb: Publish, Sign: Overloaded, Begun: at, Ended: at.Add(second), InFlight: 200})
			}
			return at.Add(2 * second)
		}, 128, 128},
		"UNAVAILABLE for ever": {func(l *Limit, at time.Time) time.Time {
			for range 50 {
				at = wave(l, at, 200, second, Overloaded)
			}
			return at
		}, limitFloor, limitFloor},
		"latency rises for all": {func(l *Limit, at time.Time) time.Time {
			at = wave(l, at, 200, second, Answered)
			return wave(l, at, 200, 5*second, Answered)
		}, 128, 128},
		"latency rises while few calls are in flight": {func(l *Limit, at time.Time) time.Time {
			at = wave(l, at, 200, second, Answered)
			for i := range 100 {
				l.End(Ended{Volume: fmt.Sprint("pv", i), Verb: Publish, Sign: Answered, Begun: at, Ended: at.Add(5 * second), InFlight: 8})
			}
			return at
		}, 256, 256},
		"latency rises and does not follow the number of calls": {func(l *Limit, at time.Time) time.Time {
			at = wave(l, at, 200, second, Answered)
			for range 2 {
				at = wave(l, at, 200, 5*second, Answered)
			}
			return at
		}, 256, 256},
		"what was attached already is answered at once, the rest takes two seconds": {func(l *Limit, at time.Time) time.Time {
			at = wave(l, at, 200, time.Millisecond, Answered)
			for range 2 {
				at = wave(l, at, 200, 2*second, Answered)
			}
			return at
		}, 256, 256},
		"detaches take five times as long as attaches": {func(l *Limit, at time.Time) time.Time {
			for range 10 {
				at = wave(l, at, 100, second, Answered)
				for i := range 100 {
					l.End(Ended{Volume: fmt.Sprint("pv", i), Verb: Unpublish, Sign: Answered, Begun: at, Ended: at.Add(5 * second), InFlight: 200})
				}
				at = at.Add(5*second + 1)
			}
			return at
		}, 256, 256},
		"many volumes hang, others are answered": {func(l *Limit, at time.Time) time.Time {
			wave(l, at.Add(second), 20, second, Answered)
			for i := range 150 {
				l.End(Ended{Volume: fmt.Sprint("hung", i), Verb: Publish, Sign: Silent, Begun: at, Ended: at.Add(15 * second), InFlight: i + 1})
			}
			return at.Add(15 * second)
		}, 256, 256},
		"nobody is answered": {func(l *Limit, at time.Time) time.Time { return wave(l, at, 200, 15*second, Silent) }, 128, 128},
		"a sign long ago": {func(l *Limit, at time.Time) time.Time {
			return wave(l, at, 200, second, Overloaded).Add(forgetAfter)
		}, 256, 256},
		"grows again": {func(l *Limit, at time.Time) time.Time {
			for range 50 {
				at = wave(l, at, 200, second, Overloaded)
			}
			for range 10 { // round trips
				at = wave(l, at, l.Calls(at), 2*second, Answered)
			}
			return at
		}, 256, 256},
		"does not grow while it is not made use of": {func(l *Limit, at time.Time) time.Time {
			at = wave(l, at, 200, second, Overloaded)
			for range 20 {
				at = wave(l, at, 20, second, Answered)
			}
			return at
		}, 128, 128},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := NewLimit(testCeiling)
			at := tt.happens(l, noon)
			if got := l.Calls(at); got < tt.from || got > tt.to {
				t.Errorf("limit %d, want %d to %d", got, tt.from, tt.to)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	l := NewLimit(testCeiling)
	if got := l.Patience(); got != 0 {
		t.Errorf("patience %v with nothing known, want none", got)
	}
	at := wave(l, noon, 20, time.Millisecond, Answered)
	if got := l.Patience(); got != leastPatience {
		t.Errorf("patience %v with a fast driver, want %v", got, leastPatience)
	}
	wave(l, at, 20, 4*time.Second, Answered)
	if got := l.Patience(); got != 12*time.Second {
		t.Errorf("patience %v where a call takes 4 s, want 12 s", got)
	}
}

// Whatever it is told, the limit stays between floor and ceiling.
func TestLimitStaysWithinBounds(t *testing.T) {
	first, count := seeds(t, 200)
	for seed := first; seed < first+count; seed++ {
		random := rand.New(rand.NewPCG(seed, 7))
		ceiling := 1 + random.IntN(400)
		l, at := NewLimit(ceiling), noon
		for range 3000 {
			took := time.Duration(random.IntN(20_000)) * time.Millisecond
			at = at.Add(time.Duration(random.IntN(400)) * time.Millisecond)
			l.End(Ended{
				Volume: fmt.Sprint(random.IntN(300)), Verb: Verb(1 + random.IntN(2)), Sign: Sign(random.IntN(4)),
				Begun: at.Add(-took), Ended: at, InFlight: 1 + random.IntN(ceiling),
			})
			if got := l.Calls(at); got > ceiling || got < min(ceiling, limitFloor) {
				t.Fatalf("seed %d: limit %d outside of %d to %d", seed, got, min(ceiling, limitFloor), ceiling)
			}
		}
	}
}

// storageModel is a driver that works on so many calls at a time, the rest wait
// with it in their order; volumes without end use it as far as the limit allows.
type storageModel struct {
	random   *rand.Rand
	limit    *Limit
	now      time.Time
	capacity int
	each     time.Duration
	hung     int // so many calls of the first volumes are never answered
	running  []modelCall
	next     int

	done, late int
	least      int // the lowest limit
}

type modelCall struct {
	nth   int
	ended Ended
	due   time.Time // when the driver is done; zero while it waits with the driver
}

const modelTimeout = 15 * time.Second

func newModel(seed uint64, capacity int, each time.Duration) *storageModel {
	return &storageModel{
		random: rand.New(rand.NewPCG(seed, 3)), limit: NewLimit(testCeiling), now: noon,
		capacity: capacity, each: each, least: testCeiling,
	}
}

// run lets time pass in small steps.
func (m *storageModel) run(d time.Duration) {
	const tick = 40 * time.Millisecond
	m.done, m.late = 0, 0
	for end := m.now.Add(d); m.now.Before(end); m.now = m.now.Add(tick) {
		m.land()
		m.least = min(m.least, m.limit.Calls(m.now))
		for len(m.running) < m.limit.Calls(m.now) {
			m.next++
			m.running = append(m.running, modelCall{nth: m.next, ended: Ended{
				Volume: fmt.Sprint(m.next), Verb: Publish, Begun: m.now, InFlight: len(m.running) + 1,
			}})
		}
		busy := 0
		for i := range m.running {
			c := &m.running[i]
			if busy++; busy > m.capacity {
				break
			}
			if c.due.IsZero() {
				c.due = m.now.Add(m.each*4/5 + time.Duration(m.random.Int64N(int64(m.each)*2/5)))
				if c.nth <= m.hung {
					c.due = m.now.Add(time.Hour)
				}
			}
		}
	}
}

// land ends what is done or has timed out.
func (m *storageModel) land() {
	var left []modelCall
	for _, c := range m.running {
		c.ended.Ended, c.ended.LeftInFlight = m.now, len(m.running)
		switch {
		case !c.due.IsZero() && !c.due.After(m.now):
			m.done++
			c.ended.Sign = Answered
		case m.now.Sub(c.ended.Begun) >= modelTimeout:
			m.late++
			c.ended.Sign = Silent
		default:
			left = append(left, c)
			continue
		}
		m.limit.End(c.ended)
	}
	m.running = left
}

// A driver that bears any number of calls gets as many as are allowed.
func TestLimitStaysAtItsCeilingWhereTheDriverBearsIt(t *testing.T) {
	for _, each := range []time.Duration{100 * time.Millisecond, 2 * time.Second, 10 * time.Second} {
		for seed := range uint64(2) {
			m := newModel(seed, 1000, each)
			m.run(time.Minute)
			if m.least < testCeiling {
				t.Errorf("seed %d: %v for each call: the limit fell to %d", seed, each, m.least)
			}
		}
	}
}

// Volumes that hang do not shrink the limit of those that do not.
func TestLimitDoesNotShrinkByVolumesThatHang(t *testing.T) {
	for seed := range uint64(2) {
		m := newModel(seed, 1000, 2*time.Second)
		m.hung = 150
		m.run(time.Minute)
		if m.least < testCeiling {
			t.Errorf("seed %d: the limit fell to %d", seed, m.least)
		}
	}
}

// A driver that works on few calls at a time is not left with a queue in which
// most calls time out, is still kept busy, and gets all of them when it bears them again.
func TestLimitFindsWhatTheDriverBears(t *testing.T) {
	for _, capacity := range []int{1, 4, 20} {
		for seed := range uint64(2) {
			m := newModel(seed, capacity, 400*time.Millisecond)
			m.run(3 * time.Minute)
			m.run(3 * time.Minute)
			possible := int(3*time.Minute/(400*time.Millisecond)) * capacity
			if m.late*20 > m.done { // it tries now and then whether more is possible
				t.Errorf("seed %d: capacity %d: after three minutes %d calls time out, %d are done", seed, capacity, m.late, m.done)
			}
			if m.done*10 < possible*9 {
				t.Errorf("seed %d: capacity %d: %d calls done of %d", seed, capacity, m.done, possible)
			}
			m.capacity = 1000
			m.run(time.Minute)
			if got := m.limit.Calls(m.now); got < testCeiling {
				t.Errorf("seed %d: limit %d a minute after capacity %d became 1000", seed, got, capacity)
			}
		}
	}
}
