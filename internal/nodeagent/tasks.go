package nodeagent

import (
	"context"
	"math/rand/v2"
	"time"

	"belay.dev/belay/internal/nodeagent/worker"
)

// periodicTask is a periodic task of a volume. It runs in its own goroutine, at most once at a time, so that a driver that hangs blocks
// neither reconciliation nor other tasks.
type periodicTask struct {
	kind   taskKind
	volume string
}

type taskKind int

const (
	gatherStats taskKind = iota
	readAttachError
)

func (m *volumeManager) runTasks(ctx context.Context) {
	worker.Serve(m.tasks, func(c periodicTask) {
		switch {
		case ctx.Err() != nil:
		case c.kind == gatherStats:
			m.gatherStats(ctx, c.volume)
		default:
			m.readAttachError(ctx, c.volume)
		}
	})
}

// randomUpTo returns a random part of a period, to spread the calls for many volumes.
func randomUpTo(period time.Duration) time.Duration {
	return time.Duration(rand.Float64() * float64(period)) //nolint:gosec // spreads calls
}

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
