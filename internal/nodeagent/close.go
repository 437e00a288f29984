package nodeagent

import (
	"errors"
	"sync"
)

// ErrClosed is what Run returns after Close.
var ErrClosed = errors.New("the node agent was closed")

// errRunTwice: all that an agent has is let go of when its first Run returns.
var errRunTwice = errors.New("Run was already called; create another node agent")

// running is how far an agent has come between New and its end.
type running struct {
	mu sync.Mutex
	// Under mu:
	closed bool
	// stop and stopped are set by Run.
	stop    func()
	stopped chan struct{}
}

// starts is for Run: nothing that New took is let go of before end was called.
func (a *Agent) starts(stop func()) (end func(), err error) {
	r := &a.running
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, ErrClosed
	case r.stopped != nil:
		return nil, errRunTwice
	}
	r.stop, r.stopped = stop, make(chan struct{})
	return func() {
		_ = a.close() // nothing is lost with it
		close(r.stopped)
	}, nil
}

// Close ends Run and returns when it has returned. Of an agent that was never run, it lets go of what New took.
func (a *Agent) Close() error {
	r := &a.running
	r.mu.Lock()
	stop, stopped, closed := r.stop, r.stopped, r.closed
	r.closed = true
	r.mu.Unlock()
	switch {
	case stopped != nil:
		stop()
		<-stopped
		return nil
	case closed:
		return nil
	}
	return a.close()
}
