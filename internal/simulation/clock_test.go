package simulation

import (
	"net/http"
	"sync/atomic"
	"time"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
)

// wallClock is what the machine of one process takes for the time. The bubble's own clock is
// the API server's; it also runs as evenly as the monotonic clock of every machine.
type wallClock struct {
	ahead atomic.Int64 // in nanoseconds; behind if negative
}

// Now has no monotonic reading: it is a time to be written down.
func (c *wallClock) Now() time.Time {
	return time.Now().Round(0).Add(time.Duration(c.ahead.Load()))
}

// set puts the clock somewhere up to a quarter of an hour apart from the API server's.
func (s *sim) set(c *wallClock) {
	c.ahead.Store(int64(s.rng.IntN(31)-15) * int64(time.Minute))
}

// newClock is the clock of a process that starts: right, in the seeds where all clocks are.
func (s *sim) newClock() *wallClock {
	c := &wallClock{}
	if s.skewed && !s.chance(25) {
		s.set(c)
	}
	return c
}

// stepClock sets the clock of the leader's machine, as a person or a time service may.
func (s *sim) stepClock() {
	if s.skewed {
		s.set(s.controller.wall)
		s.say("the clock of %s is set, to be %v ahead", s.controller.name, time.Duration(s.controller.wall.ahead.Load()))
	}
}

// timekeeper is what the process counts its waits by: the API server's time, as it knows it
// from the dates of its answers. The fault that is planted for it takes the machine's clock.
func (c *controller) timekeeper() attachdetach.Clock {
	if planted.Wall {
		return c.wall
	}
	clock := &kube.ServerClock{}
	c.actor.dated = func(_, date time.Time) { clock.Observe(date.UTC().Format(http.TimeFormat)) }
	return clock
}

// date is the header with that name in each answer of the API server.
func date() time.Time { return time.Now().Truncate(time.Second) }
