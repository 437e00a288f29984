package nodeagent

import (
	"sync"
)

// running is the state of an agent between New and its end.
type running struct {
	mu sync.Mutex
	// Under mu:
	closed bool
	// stop and stopped are set by Run.
	stop    func()
	stopped chan struct{}
}

// starts registers a Run. The caller calls end when it is done with everything that New acquired.
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
		_ = a.close() // there is nothing to recover
		close(r.stopped)
	}, nil
}

// Close stops Run and waits until it has returned. Without a Run, it releases what New acquired.
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
