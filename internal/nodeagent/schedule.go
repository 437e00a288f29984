package nodeagent

import (
	"math/rand/v2"
	"time"
)

// schedule aligns periodic work.
type schedule struct{ start time.Time }

func newSchedule() schedule { return schedule{time.Now()} }

// slotsPerPeriod is the number of times within a period at which periodic work may run.
const slotsPerPeriod = 12

// batch extends a pause to the next slot, so that periodic work of many pods runs together. On an idle node wake-ups take most of the CPU
// time: without slots two dozen per second with 500 pods.
func (s schedule) batch(pause, period time.Duration) time.Duration {
	slot := period / slotsPerPeriod
	if slot <= 0 {
		return pause
	}
	return pause + slot - (time.Since(s.start)+pause)%slot
}

// randomUpTo returns a random part of a period, to spread the calls for many volumes.
func randomUpTo(period time.Duration) time.Duration {
	return time.Duration(rand.Float64() * float64(period)) //nolint:gosec // spreads calls
}

// syncPause returns the time to the next resync: the period, extended by up to a half to spread the reads.
func syncPause(period time.Duration, jitter float64) time.Duration {
	return period + time.Duration(jitter*float64(period)/2)
}

// eventDedup suppresses repeated events about one object.
type eventDedup struct {
	text string
	at   time.Time
}

// repeatEventAfter is when an unchanged event is sent again: the API server drops events after an hour (kube-apiserver --event-ttl).
const repeatEventAfter = 20 * time.Minute

// isNew reports whether to send the event now, and remembers it if so.
func (t *eventDedup) isNew(text string, now time.Time) bool {
	if t.text == text && now.Sub(t.at) < repeatEventAfter {
		return false
	}
	t.text, t.at = text, now
	return true
}
