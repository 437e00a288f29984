package nodeagent

import (
	"context"
	"math/rand/v2"
	"time"
)

// periodicTask is something that is done from time to time beside the turns of the volumes.
// No volume waits for it, and each has a goroutine of its own, at most one: a driver that
// hangs in one holds up that one alone.
type periodicTask struct {
	kind choreKind
	// volume is its name.
	volume string
}

type choreKind int

const (
	gatherStats choreKind = iota
	readAttachError
)

func (m *volumeManager) serveChores(ctx context.Context) {
	serve(m.tasks, func(c periodicTask) {
		switch {
		case ctx.Err() != nil:
		case c.kind == gatherStats:
			m.gatherStats(ctx, c.volume)
		default:
			m.readAttachError(ctx, c.volume)
		}
	})
}

// upTo is a random part of a period: what many volumes do in it is spread over it.
func upTo(period time.Duration) time.Duration {
	return time.Duration(rand.Float64() * float64(period)) //nolint:gosec // spreads calls
}

// schedule is when things are done that come each period.
type schedule struct{ made time.Time }

func newBeat() schedule { return schedule{time.Now()} }

// moments is how often within a period something that comes each period may be done.
const moments = 12

// batch stretches a pause of something that comes each period up to the next of the moments at
// which such things are done. On a node at rest most of the processor time is that of waking up: two
// dozen times a second for 500 pods, were each to come at a time of its own.
func (b schedule) batch(pause, period time.Duration) time.Duration {
	grid := period / moments
	if grid <= 0 {
		return pause
	}
	late := (time.Since(b.made) + pause) % grid
	return pause + grid - late
}
