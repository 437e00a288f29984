package nodeagent

import (
	"context"
	"path"

	"google.golang.org/grpc"
)

// interceptor stands between the agent and the scripted driver. do is what the driver would do.
type interceptor func(call string, request any, do func() (any, error)) (any, error)

// intercepting is the server's side of it.
func (d *scriptedDriver) intercepting(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	d.mu.Lock()
	between := d.between
	d.mu.Unlock()
	do := func() (any, error) { return handler(ctx, request) }
	if between == nil {
		return do()
	}
	return between(path.Base(info.FullMethod), request, do)
}

// intercept puts an interceptor in place, or with nil takes it away.
func (d *scriptedDriver) intercept(between interceptor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.between = between
}
