package csi

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// calls counts the calls in flight on one connection.
type calls struct {
	mu      sync.Mutex
	running int    // guarded by mu
	onIdle  func() // guarded by mu; called when no call is left
}

func (c *calls) count(ctx context.Context, method string, request, reply any,
	conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	c.mu.Lock()
	c.running++
	c.mu.Unlock()
	defer c.end()
	return invoke(ctx, method, request, reply, conn, options...)
}

func (c *calls) end() {
	c.mu.Lock()
	c.running--
	last := c.onIdle
	if c.running > 0 {
		last = nil
	}
	c.mu.Unlock()
	if last != nil {
		last()
	}
}

// whenIdle calls do as soon as no call is in flight.
func (c *calls) whenIdle(do func()) {
	c.mu.Lock()
	c.onIdle = do
	idle := c.running == 0
	c.mu.Unlock()
	if idle {
		do()
	}
}
