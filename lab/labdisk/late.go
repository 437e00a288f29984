package labdisk

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/status"
)

// lateCalls are the calls of a driver that are carried out although their callers may have abandoned them (EffectLate, EffectDisorder). A call
// for the same volume and node waits until an earlier one that is late has been carried out: what a CSI driver has to keep to
// (docs/drivers.md), unless the fault is that it does not.
type lateCalls struct {
	mu   sync.Mutex
	last map[[2]string]chan struct{} // closed when the last late call of a volume and node has been carried out
}

func newLateCalls() *lateCalls { return &lateCalls{last: map[[2]string]chan struct{}{}} }

// wait returns when no earlier call of the volume and node is late any more.
func (l *lateCalls) wait(ctx context.Context, c Call) error {
	l.mu.Lock()
	before := l.last[[2]string{c.Volume, c.Node}]
	l.mu.Unlock()
	if before == nil {
		return nil
	}
	select {
	case <-before:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// line puts a call at the end of the line of its volume and node. The call is carried out after before, which may be nil, and calls done.
func (l *lateCalls) line(c Call) (before <-chan struct{}, done func()) {
	key, own := [2]string{c.Volume, c.Node}, make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.last[key] = l.last[key], own
	return before, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last[key] == own {
			delete(l.last, key)
		}
		close(own)
	}
}

// carryOut does the work of a call after the delay of the fault, also if the caller has abandoned it by then.
func (l *lateCalls) carryOut(ctx context.Context, f *Fault, c Call, work func(context.Context) (any, error)) (any, error) {
	var before <-chan struct{}
	done := func() {}
	if f.Effect == EffectLate {
		before, done = l.line(c)
	}
	type answer struct {
		response any
		err      error
	}
	answers := make(chan answer, 1)
	go func() {
		defer done()
		time.Sleep(f.Delay)
		if before != nil {
			<-before
		}
		response, err := work(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			slog.Info("Call carried out after its caller abandoned it", "fault", f.ID, "method", c.Method, "volume", c.Volume, "node", c.Node, "err", err)
		}
		answers <- answer{response, err}
	}()
	select {
	case a := <-answers:
		return a.response, a.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}
