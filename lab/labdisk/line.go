package labdisk

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/status"
)

// lines keep the calls of a driver in order, per volume and node: what a CSI driver has to do (docs/drivers.md), unless the fault is that it
// does not (EffectDisorder).
type lines struct {
	mu   sync.Mutex
	last map[[2]string]chan struct{} // closed when the last one in the line has been carried out
}

func newLines() *lines { return &lines{last: map[[2]string]chan struct{}{}} }

// join puts a call at the end of the line of its volume and node. The call is carried out when before is closed, and then leaves. One that its
// caller has abandoned by then does not join: a later one may have been answered already. One that does not stay delays no other.
func (l *lines) join(ctx context.Context, c Call, stays bool) (before <-chan struct{}, leave func(), err error) {
	key, own := [2]string{c.Volume, c.Node}, make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	last := l.last[key]
	if last == nil {
		last = make(chan struct{})
		close(last)
	}
	if !stays {
		return last, func() {}, nil
	}
	l.last[key] = own
	return last, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last[key] == own {
			delete(l.last, key)
		}
		close(own)
	}, nil
}

// turn waits until the earlier calls of the line have been carried out. A call that its caller abandons before that is not. Those of a node have
// their own order (nodeServer.begin), and wait for late ones only.
func (l *lines) turn(ctx context.Context, c Call) (func(), error) {
	before, leave, err := l.join(ctx, c, c.Controller && c.Volume != "")
	if err != nil {
		return nil, err
	}
	select {
	case <-before:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		go func() {
			<-before
			leave() // no named result: the return would set it to nil before
		}()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return leave, nil
}

// carryOut does the work of a call after the delay of the fault, also if the caller has abandoned it by then.
func (l *lines) carryOut(ctx context.Context, f *Fault, c Call, work func(context.Context) (any, error)) (any, error) {
	var before <-chan struct{}
	leave := func() {}
	if f.Effect == EffectLate {
		var err error
		if before, leave, err = l.join(ctx, c, true); err != nil {
			return nil, err
		}
	}
	type answer struct {
		response any
		err      error
	}
	answers := make(chan answer, 1)
	go func() {
		defer leave()
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
