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

func (a *Agent) serveChores(ctx context.Context) {
	serve(a.chores, func(c chore) {
		switch {
		case ctx.Err() != nil:
		case c.kind == gatherStats:
			a.gatherStats(ctx, c.volume)
		default:
			a.readAttachError(ctx, c.volume)
		}
	})
}

// upTo is a random part of a period: what many volumes do in it is spread over it.
func upTo(period time.Duration) time.Duration {
	return time.Duration(rand.Float64() * float64(period)) //nolint:gosec // spreads calls
}
