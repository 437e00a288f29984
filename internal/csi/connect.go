package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// ErrDriverChanged is returned when another driver, or one that can do other things,
// came back behind the socket.
var ErrDriverChanged = errors.New("a different CSI driver is behind the socket")

// errAbsent is returned when a driver was away for longer than it may.
var errAbsent = errors.New("the CSI driver did not reconnect in time")

// recognizeRetry is the pause before a driver that came back, and did not say who it
// is, is asked again. csi-lib-utils pauses as long between two probes.
const recognizeRetry = time.Second

// Driver is the CSI driver behind a socket. It may restart and come back, but as the
// same: no call goes over a connection before the driver at its other end has said its
// name and capabilities again.
type Driver struct {
	// Name is the driver's name (GetPluginInfo).
	Name string

	conn         *grpc.ClientConn
	capabilities Capabilities
	probeTimeout time.Duration
	lost         chan struct{} // holds one when the connection was lost and Follow was not told

	mu         sync.Mutex
	losses     int // connections lost so far
	recognized int // losses when the driver was asked who it is
}

// Connect connects to a driver's socket within 30 s, waits until the driver is ready,
// for ever if need be, and asks for its name; probeTimeout bounds one Probe. An error
// that is not a timeout is final, as with csi-attacher.
func Connect(ctx context.Context, address string, manager metrics.CSIMetricsManager, probeTimeout time.Duration) (*Driver, error) {
	d := &Driver{probeTimeout: probeTimeout, lost: make(chan struct{}, 1)}
	conn, err := connection.Connect(ctx, address, manager, connection.OnConnectionLoss(d.connectionLost))
	if err != nil {
		return nil, fmt.Errorf("connect to the CSI driver at %s: %w", address, err)
	}
	d.conn = conn
	if err := rpc.ProbeForever(ctx, conn, probeTimeout); err != nil {
		d.Close()
		return nil, fmt.Errorf("wait for the CSI driver at %s to become ready: %w", address, err)
	}
	if d.Name, err = driverName(ctx, conn); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Close ends the connection and the calls on it.
func (d *Driver) Close() { _ = d.conn.Close() }

// Controller asks the driver what it can do. Before each call is sent permit is asked,
// at the last moment; its error is the call's. Nil permits all.
func (d *Driver) Controller(ctx context.Context, permit func() error) (*Controller, error) {
	c, err := NewController(ctx, d.conn, permitting(func() error {
		if !d.isRecognized() {
			return errors.New("waiting for the CSI driver to reconnect")
		}
		if permit == nil {
			return nil
		}
		return permit()
	}))
	if err == nil {
		d.capabilities, c.present = c.capabilities, d.Present
	}
	return c, err
}

// Present tells whether the driver is there and known to be the one it was.
func (d *Driver) Present() bool {
	return d.isRecognized() && d.conn.GetState() == connectivity.Ready
}

// Absence is what is done about a driver that is away.
type Absence struct {
	// Back is called when it is Present again and the same as before.
	Back func()
	// AtMost bounds how long it may be away; 0 means for ever.
	AtMost time.Duration
}

// Follow keeps the connection up until ctx ends. It returns an error when another
// driver came back, or none in time. Call it after Controller.
func (d *Driver) Follow(ctx context.Context, absence Absence) error {
	ctx, cancel := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	defer keeper.Wait()
	defer cancel()
	keeper.Go(func() { d.keepConnected(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.lost:
		}
		klog.FromContext(ctx).Info("Lost connection to CSI driver, waiting for it to reconnect", "driver", d.Name)
		if err := d.awaitReturn(ctx, absence.AtMost); err != nil || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("Reconnected to CSI driver", "driver", d.Name)
		absence.Back()
	}
}

// connectionLost is called before gRPC connects anew: nothing can have been sent over the
// next connection yet.
func (d *Driver) connectionLost(context.Context) bool {
	d.mu.Lock()
	d.losses++
	d.mu.Unlock()
	select {
	case d.lost <- struct{}{}:
	default:
	}
	return true
}

func (d *Driver) isRecognized() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.recognized == d.losses
}

// keepConnected connects anew when a connection is lost: gRPC would wait for a call.
func (d *Driver) keepConnected(ctx context.Context) {
	for {
		state := d.conn.GetState()
		if state == connectivity.Idle {
			d.conn.Connect()
		}
		if !d.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// awaitReturn waits until the driver is back and recognized, or ctx ends.
func (d *Driver) awaitReturn(ctx context.Context, atMost time.Duration) error {
	if atMost > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, atMost, fmt.Errorf("%w: %v", errAbsent, atMost))
		defer cancel()
		ctx = bounded
	}
	for {
		err := d.recognize(ctx)
		if err == nil || errors.Is(err, ErrDriverChanged) {
			return err
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, errAbsent) {
				return cause
			}
			return nil
		case <-time.After(recognizeRetry):
			klog.FromContext(ctx).Error(err, "Failed to identify CSI driver, retrying", "driver", d.Name)
		}
	}
}

// recognize waits for a connection and asks the driver behind it who it is.
func (d *Driver) recognize(ctx context.Context) error {
	for state := d.conn.GetState(); state != connectivity.Ready; state = d.conn.GetState() {
		if !d.conn.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
	d.mu.Lock()
	losses := d.losses
	d.mu.Unlock()
	if err := rpc.ProbeForever(ctx, d.conn, d.probeTimeout); err != nil {
		return err
	}
	name, err := driverName(ctx, d.conn)
	if err != nil {
		return err
	}
	capabilities, err := getCapabilities(ctx, d.conn)
	switch {
	case err != nil:
		return err
	case name != d.Name:
		return fmt.Errorf("%w: it was %s and is %s", ErrDriverChanged, d.Name, name)
	case capabilities != d.capabilities:
		return fmt.Errorf("%w: the capabilities of %s were %+v and are %+v", ErrDriverChanged, name, d.capabilities, capabilities)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.losses != losses {
		return errors.New("the connection was lost again during identification")
	}
	d.recognized = losses
	return nil
}

// permission is asked each time that gRPC sends a call, also when it repeats one by
// itself on another connection: that is when credentials are asked for. A check before
// the call would be too early for a call that waits for a connection.
type permission func() error

// permitting makes gRPC ask before each call.
func permitting(ask func() error) grpc.CallOption { return grpc.PerRPCCredentials(permission(ask)) }

// GetRequestMetadata adds nothing to a call that is permitted.
func (p permission) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if err := p(); err != nil {
		return nil, status.Errorf(codes.Unavailable, "call was not sent: %v", err)
	}
	return nil, nil
}

// RequireTransportSecurity is false: nothing is disclosed.
func (permission) RequireTransportSecurity() bool { return false }

// withOptions adds options to each call of a connection.
type withOptions struct {
	grpc.ClientConnInterface

	options []grpc.CallOption
}

// Invoke sends one call.
func (c withOptions) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(ctx, method, request, reply, append(options, c.options...)...)
}
