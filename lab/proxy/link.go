package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dialWithin bounds a connection to the target.
const dialWithin = 10 * time.Second

// retryAccept is the pause after a connection that could not be accepted.
const retryAccept = 100 * time.Millisecond

// linkBuffer is the most that one direction of a connection holds back while the link is cut.
const linkBuffer = 64 << 10

// Link passes TCP connections on to a target and can be cut as a cable is: while it is, connections stay as they are and carry nothing, and
// new ones get no answer. Unlike Proxy it looks into nothing. Its methods may be called from any goroutine.
type Link struct {
	address, target string
	running         sync.WaitGroup

	mu sync.Mutex
	// listener is nil while the link refuses connections.
	listener net.Listener
	// open is closed while the link passes data, and replaced when it is cut.
	open        chan struct{}
	closed      chan struct{}
	connections map[*net.TCPConn]struct{}
}

// NewLink listens on an address and passes what connects there on to the target, until Close. A target that refuses a connection resets it.
func NewLink(ctx context.Context, address, target string) (*Link, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for connections to %s: %w", target, err)
	}
	l := &Link{
		address: listener.Addr().String(), target: target, listener: listener,
		open: make(chan struct{}), closed: make(chan struct{}), connections: map[*net.TCPConn]struct{}{},
	}
	close(l.open)
	l.running.Go(func() { l.accept(listener) })
	return l, nil
}

// Refuse has the kernel refuse connections, as it does for a machine that runs and where no process listens, or lets them pass again. What is connected stays.
func (l *Link) Refuse(refuse bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case isClosed(l.closed) || refuse == (l.listener == nil):
		return nil
	case refuse:
		err := l.listener.Close()
		l.listener = nil
		if err != nil {
			return fmt.Errorf("refuse connections to %s: %w", l.target, err)
		}
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", l.address)
	if err != nil {
		return fmt.Errorf("listen again for connections to %s: %w", l.target, err)
	}
	l.listener = listener
	l.running.Go(func() { l.accept(listener) })
	return nil
}

// Cut stops the traffic. What has been passed on already may still arrive.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.open) {
		l.open = make(chan struct{})
	}
}

// Heal lets the traffic continue: connections that neither end has closed continue, as TCP does when packets arrive again.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isClosed(l.open) {
		close(l.open)
	}
}

// Reset ends all connections, as for a machine that has started again and knows none of them.
func (l *Link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.connections {
		reset(c)
	}
}

// Close ends the link with all its connections.
func (l *Link) Close() error {
	l.mu.Lock()
	if isClosed(l.closed) {
		l.mu.Unlock()
		return nil
	}
	close(l.closed)
	var err error
	if l.listener != nil {
		err = l.listener.Close()
	}
	l.mu.Unlock()
	l.Reset()
	l.running.Wait()
	if err != nil {
		return fmt.Errorf("close the link to %s: %w", l.target, err)
	}
	return nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // a reset, which loses what was not sent yet
	_ = c.Close()
}

func (l *Link) accept(listener net.Listener) {
	for {
		c, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // too many open files, for example
			select {
			case <-l.closed:
			case <-time.After(retryAccept):
			}
			continue
		}
		if near, ok := c.(*net.TCPConn); ok && l.add(near) {
			l.running.Go(func() { l.serve(near) })
		}
	}
}

// add remembers a connection; false if the link is closed.
func (l *Link) add(c *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.closed) {
		reset(c)
		return false
	}
	l.connections[c] = struct{}{}
	return true
}

// drop ends a connection.
func (l *Link) drop(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.connections, c)
	_ = c.Close()
}

// passes waits until the link passes data; false if it is closed.
func (l *Link) passes() bool {
	for {
		l.mu.Lock()
		open := l.open
		l.mu.Unlock()
		select {
		case <-l.closed:
			return false
		case <-open:
		}
		l.mu.Lock()
		same := open == l.open
		l.mu.Unlock()
		if same {
			return true
		}
	}
}

func (l *Link) serve(near *net.TCPConn) {
	defer l.drop(near)
	if !l.passes() {
		return
	}
	c, err := net.DialTimeout("tcp", l.target, dialWithin)
	far, ok := c.(*net.TCPConn)
	if err != nil || !ok || !l.add(far) {
		reset(near)
		return
	}
	defer l.drop(far)
	var back sync.WaitGroup
	back.Go(func() { l.copy(near, far) })
	l.copy(far, near)
	back.Wait()
}

// copy passes one direction on until it ends. How it ends is passed on as well, and held back as data is.
func (l *Link) copy(to, from *net.TCPConn) {
	buffer := make([]byte, linkBuffer)
	for {
		n, err := from.Read(buffer)
		if !l.passes() {
			return
		}
		if n > 0 {
			if _, failed := to.Write(buffer[:n]); failed != nil {
				reset(from)
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite()
			return
		case err != nil:
			reset(to)
			return
		}
	}
}
