package publication

import (
	"math"
	"slices"
	"time"
)

const (
	// limitFloor is what is never taken away, where the ceiling allows it: the
	// number of calls that csi-attacher allows as shipped.
	limitFloor = 10
	// roundSize is how many volumes have to be heard of before anything is
	// concluded: one slow or broken volume never decides.
	roundSize = 16
	// roundMax is how far apart the answers of one round may be.
	roundMax = time.Minute
	// rise is how much longer than usual, in all, most calls have to take before it
	// counts; riseSlack is added, so that a driver that answers in a millisecond may
	// also answer in twenty.
	rise      = 2
	riseSlack = 100 * time.Millisecond
	// overloadedShare: one answer in so many that tells of overload is enough.
	overloadedShare = 4
	// cutMost and cutLeast bound what is left of the limit after one cut.
	cutMost, cutLeast = 0.5, 0.8
	// telling is by what factor the number of calls in flight has to differ before
	// the latency says whether it follows it.
	telling = 1.15
	// growth is how much the limit grows by one answer: by half in a round trip.
	growth = 0.5
	// forgetAfter is how long a cut is remembered after the last one.
	forgetAfter = 5 * time.Minute
	// leastPatience is how long any call may take before it can count as hanging.
	leastPatience = 2 * time.Second
	// patience is how many times longer than most a call may take until then.
	patience = 3
)

// Sign is what the end of a call says about the driver as a whole.
type Sign int

const (
	// NoSign: nothing; the zero value.
	NoSign Sign = iota
	// Answered: the driver did what it was asked to.
	Answered
	// Overloaded: the driver says so (UNAVAILABLE).
	Overloaded
	// Silent: the driver did not answer in time, although the volume was not known to
	// hang.
	Silent
)

// Ended is a call that has ended.
type Ended struct {
	Volume       string
	Verb         Verb
	Sign         Sign
	Begun, Ended time.Time
	// InFlight and LeftInFlight are how many calls were in flight when it began and
	// when it ended, itself included.
	InFlight, LeftInFlight int
}

// Limit is how many calls to the driver may be in flight at once. It begins at its
// ceiling, so that a driver that bears it is not held up; it shrinks by a part of
// itself when the driver shows that it is overloaded, and grows with each answer
// while it is made use of: additive increase per answer, multiplicative decrease per
// round trip, as TCP does.
//
// Overload is that one volume in four is answered UNAVAILABLE, or not answered
// while nobody else is either; or that most calls take twice as long as they once
// did. A longer latency may have another cause than our calls: if it does not
// follow their number, the cut is taken back, and that latency is usual from then
// on. So a driver that takes two seconds for each call keeps the limit at its ceiling.
type Limit struct {
	ceiling int
	current float64
	// cutAt is when the limit was last cut: calls that began before say nothing new.
	cutAt time.Time
	// answered is when the call began that began last of all that were answered.
	answered time.Time
	// silence is when a call last ended unanswered of which the driver, not the volume,
	// was the cause. What it gives up shortens its queue: latencies of calls that
	// saw this do not follow anything.
	silence time.Time
	rounds  [Unpublish + 1]hearing
}

// hearing is what the calls of one verb tell, in rounds.
type hearing struct {
	begun time.Time
	heard map[string]Ended // by volume, the last call of each
	usual time.Duration    // the shortest median, unless it has been given up; 0 if not known
	last  time.Duration    // the last median
	trial *trial           // a cut because of latency, whose effect is not known yet
}

// trial is the state before a cut.
type trial struct {
	limit    float64
	median   time.Duration
	inFlight float64
}

// NewLimit makes a limit that is at its ceiling.
func NewLimit(ceiling int) *Limit {
	return &Limit{ceiling: ceiling, current: float64(ceiling)}
}

// Calls is how many calls may be in flight now.
func (l *Limit) Calls(now time.Time) int {
	l.forget(now)
	return int(l.current)
}

// Patience is how long a call may take before it counts as one that hangs; zero if
// too few have been answered to tell.
func (l *Limit) Patience() time.Duration {
	longest := time.Duration(0)
	for _, r := range l.rounds {
		longest = max(longest, r.last)
	}
	if longest == 0 {
		return 0
	}
	return max(leastPatience, patience*longest)
}

// End takes the end of a call.
func (l *Limit) End(e Ended) {
	l.forget(e.Ended)
	switch {
	case e.Sign == Answered && e.Begun.After(l.answered):
		l.answered = e.Begun
	case e.Sign == Silent && e.Begun.Before(l.answered):
		return // it is this volume that hangs, not the driver
	case e.Sign == NoSign:
		return
	}
	if e.Sign == Silent {
		l.silence = e.Ended
	}
	if !e.Begun.After(l.cutAt) {
		return
	}
	if e.Sign == Answered && float64(max(e.InFlight, e.LeftInFlight)) >= l.current/2 && !l.onTrial() {
		l.current = min(float64(l.ceiling), l.current+growth)
	}
	r := &l.rounds[e.Verb]
	if len(r.heard) == 0 || e.Ended.Sub(r.begun) > roundMax {
		r.begun, r.heard = e.Ended, map[string]Ended{}
	}
	r.heard[e.Volume] = e
	if len(r.heard) >= roundSize {
		l.judge(r, e.Ended)
		r.heard = nil
	}
}

// judge draws the conclusion from a full round.
func (l *Limit) judge(r *hearing, now time.Time) {
	overloaded, inFlight, steady := 0, 0, true
	var took []time.Duration
	for _, e := range r.heard {
		if e.Sign == Answered {
			took = append(took, e.Ended.Sub(e.Begun))
		} else {
			overloaded++
		}
		inFlight += e.InFlight
		steady = steady && e.Begun.After(l.silence)
	}
	if overloaded*overloadedShare >= len(r.heard) {
		l.cut(now, cutMost)
		return
	}
	slices.Sort(took)
	median, mean := took[len(took)/2], float64(inFlight)/float64(len(r.heard))
	r.last = median
	if r.trial != nil && steady {
		if follows, known := r.trial.latencyFollows(median, mean); known {
			if !follows {
				l.current = max(l.current, r.trial.limit)
				r.usual = median
			}
			r.trial = nil
		}
	}
	switch longest := rise*r.usual + riseSlack; {
	case r.usual == 0 || median < r.usual:
		r.usual, r.trial = median, nil
	case median > longest && r.crowded(longest):
		if r.trial == nil && steady {
			r.trial = &trial{limit: l.current, median: median, inFlight: mean}
		}
		l.cut(now, min(cutLeast, max(cutMost, float64(longest)/float64(median))))
	default:
		r.trial = nil
	}
}

// crowded tells whether a call took longer than that beside more others than are
// allowed in any case.
func (r *hearing) crowded(longest time.Duration) bool {
	for _, e := range r.heard {
		if e.InFlight > limitFloor && e.Ended.Sub(e.Begun) > longest {
			return true
		}
	}
	return false
}

// latencyFollows tells whether the latency is rather what it was, times what the number
// of calls in flight has become, than what it was.
func (t trial) latencyFollows(median time.Duration, inFlight float64) (follows, known bool) {
	calls := inFlight / t.inFlight
	if calls < telling && calls > 1/telling {
		return false, false
	}
	latency := float64(median) / float64(t.median)
	halfway := math.Sqrt(calls)
	return (calls > 1) == (latency > halfway), true
}

func (l *Limit) onTrial() bool {
	return slices.ContainsFunc(l.rounds[:], func(r hearing) bool { return r.trial != nil })
}

func (l *Limit) cut(now time.Time, part float64) {
	l.current = max(l.floor(), l.current*part)
	l.cutAt = now
	for i := range l.rounds {
		l.rounds[i].heard = nil
	}
}

func (l *Limit) floor() float64 { return float64(min(limitFloor, l.ceiling)) }

// forget goes back to the ceiling when the last sign of overload is long ago.
func (l *Limit) forget(now time.Time) {
	if l.cutAt.IsZero() || now.Sub(l.cutAt) < forgetAfter {
		return
	}
	l.current, l.cutAt = float64(l.ceiling), time.Time{}
	for i := range l.rounds {
		l.rounds[i].trial = nil
	}
}
