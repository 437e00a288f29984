package nodeagent

import (
	"context"
	"math/rand/v2"
	"time"
)

// chore is something that is done from time to time beside the turns of the volumes.
// No volume waits for it, and each has a goroutine of its own, at most one: a driver that
// hangs in one holds up that one alone.
type chore struct {
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
	serve(m.chores, func(c chore) {
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

// beat is when things are done that come each period.
type beat struct{ made time.Time }

func newBeat() beat { return beat{time.Now()} }

// moments is how often within a period something that comes each period may be done.
const moments = 12

// together stretches a pause of something that comes each period up to the next of the moments at
// which such things are done. On a node at rest most of the processor time is that of waking up: two
// dozen times a second for 500 pods, were each to come at a time of its own.
func (b beat) together(pause, period time.Duration) time.Duration {
	grid := period / moments
	if grid <= 0 {
		return pause
	}
	late := (time.Since(b.made) + pause) % grid
	return pause + grid - late
}
