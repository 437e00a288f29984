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

// ErrDriverChanged is returned when a different driver, or one with other capabilities, reconnects.
var ErrDriverChanged = errors.New("a different CSI driver is behind the socket")

// errAbsent is returned when the driver was disconnected for too long.
var errAbsent = errors.New("the CSI driver did not reconnect in time")

// recognizeRetry is the pause before a driver that did not identify itself is asked again. csi-lib-utils uses the same between two
// probes.
const recognizeRetry = time.Second

// Driver is the CSI driver behind a socket. It may restart, but must stay the same: no call is sent over a new connection before
// the driver has confirmed its name and capabilities.
type Driver struct {
	// Name is the driver's name (GetPluginInfo).
	Name string

	conn         *grpc.ClientConn
	capabilities Capabilities
	probeTimeout time.Duration
	lost         chan struct{} // has one element if the connection was lost and Follow has not seen that

	mu         sync.Mutex
	losses     int // lost connections so far
	recognized int // the value of losses when the driver last identified itself
}

// Connect connects to a driver's socket within 30 s, waits until the driver is ready, indefinitely, and reads its name;
// probeTimeout limits one Probe. An error that is not a timeout is final, as with csi-attacher.
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

// Controller reads the driver's capabilities. permit is called just before each call is sent; its error is the call's. Nil permits
// all calls.
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

// Present reports whether the driver is connected and identified.
func (d *Driver) Present() bool {
	return d.isRecognized() && d.conn.GetState() == connectivity.Ready
}

// Absence configures what happens while a driver is disconnected.
type Absence struct {
	// Back is called when the driver is Present again.
	Back func()
	// AtMost limits the time without a connection; 0 for no limit.
	AtMost time.Duration
}

// Follow keeps the connection up until ctx ends. It returns an error when a different driver connects, or none in time. Call it
// after Controller.
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
		klog.FromContext(ctx).Error(nil, "Lost connection to CSI driver, waiting for it to reconnect", "driver", d.Name,
			"remedy", "if it does not return, check that its container is running and serves the socket of --csi-address")
		if err := d.awaitReturn(ctx, absence.AtMost); err != nil || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("Reconnected to CSI driver", "driver", d.Name)
		absence.Back()
	}
}

// connectionLost is called before gRPC reconnects, so nothing was sent over the next connection yet.
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

// keepConnected reconnects when a connection is lost: gRPC alone would wait for a call.
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

// awaitReturn waits until the driver is back and identified, or ctx ends.
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

// recognize waits for a connection and identifies the driver behind it.
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

// permission is asked each time that gRPC sends a call, including when it repeats one on another connection, because credentials
// are requested then. A check before the call would be too early for a call that waits for a connection.
type permission func() error

func permitting(ask func() error) grpc.CallOption { return grpc.PerRPCCredentials(permission(ask)) }

// GetRequestMetadata adds nothing to a call that is permitted.
func (p permission) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if err := p(); err != nil {
		return nil, status.Errorf(codes.Unavailable, "call was not sent: %v", err)
	}
	return nil, nil
}

// RequireTransportSecurity is false, because nothing is disclosed.
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
