package drivercheck

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/usage"
)

// target is the socket of an endpoint as gRPC names it.
func target(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return "", usage.Errorf("--endpoint is %q, but must be the path of a unix socket, such as unix:///csi/csi.sock", endpoint)
	}
	return "unix://" + path, nil
}

// Driver is a driver that answers.
type Driver struct {
	*csi.Controller
	Name string

	conn *grpc.ClientConn
}

// Dial connects to a driver, which must be ready within the timeout.
func Dial(ctx context.Context, endpoint string, timeout time.Duration) (*Driver, error) {
	socket, err := target(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(sends{}))
	if err != nil {
		return nil, fmt.Errorf("--endpoint is %q: %w", endpoint, err)
	}
	d := &Driver{conn: conn}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ready, err := rpc.Probe(ctx, conn)
	if err == nil && !ready {
		err = errors.New("it is not ready")
	}
	if err == nil {
		d.Name, err = rpc.GetDriverName(ctx, conn)
	}
	if err == nil {
		d.Controller, err = csi.NewController(ctx, conn)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("the driver behind --endpoint %s: %s", endpoint, status.Convert(err).Message())
	}
	return d, nil
}

// Close ends the connection.
func (d *Driver) Close() { _ = d.conn.Close() }

// sentKey is that of an *atomic.Bool in the context of a call, which becomes true when the call is sent.
type sentKey struct{}

// sends finds out which calls are sent: one whose deadline is too short ends before the driver can know of it.
type sends struct{}

func (sends) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sends) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sends) HandleConn(context.Context, stats.ConnStats)                       {}

func (sends) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, written := s.(*stats.OutPayload); !written {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}
