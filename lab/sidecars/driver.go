package sidecars

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/lab/labdisk"
)

// DriverName is the CSI driver of the rig.
const DriverName = "sidecars.belay.dev"

// Methods that the driver writes down.
const (
	Publish   = "ControllerPublishVolume"
	Unpublish = "ControllerUnpublishVolume"
)

// Driver is a CSI driver's controller service in memory. As a storage would, it continues what
// it has begun when its caller is killed, and works on one call per volume at a time.
type Driver struct {
	csi.UnimplementedControllerServer

	servers map[string]*grpc.Server // by socket
	serving errgroup.Group

	mu      sync.Mutex
	closed  map[string]bool // sockets
	late    int             // calls that came to closed ones
	latency time.Duration
	fails   int // percent of unpublishes
	calls   []labdisk.Call
	pending map[string][]caller        // by volume
	last    map[string]chan struct{}   // by volume: closed when its last call has ended
	holders map[string]map[string]bool // node IDs by volume
	wrong   []string
}

// New returns a driver that does not listen yet.
func New() *Driver {
	return &Driver{
		servers: map[string]*grpc.Server{}, closed: map[string]bool{},
		pending: map[string][]caller{}, last: map[string]chan struct{}{}, holders: map[string]map[string]bool{},
	}
}

// Open listens on a unix socket until Stop. Each attacher has one of its own.
func (d *Driver) Open(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening for an attacher: %w", err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, labdisk.Identity{Driver: DriverName})
	csi.RegisterControllerServer(server, endpoint{Driver: d, socket: socket})
	d.servers[socket] = server
	d.serving.Go(func() error { return server.Serve(listener) })
	return nil
}

// Close is for the socket of an attacher that was killed. What it has asked is not done from
// now on unless it was begun: such a request may still lie in the socket, or wait for its turn
// on a busy machine, when the next attacher is at work.
func (d *Driver) Close(socket string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed[socket] = true
}

// Late counts the calls that came to closed sockets.
func (d *Driver) Late() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.late
}

// Stop ends the service.
func (d *Driver) Stop() error {
	for _, server := range d.servers {
		server.Stop()
	}
	if err := d.serving.Wait(); err != nil {
		return fmt.Errorf("serving the driver: %w", err)
	}
	return nil
}

// SetLatency is how long a call takes from now on: a part of it, drawn for each call, before the
// storage acts, the rest after.
func (d *Driver) SetLatency(latency time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = latency
}

// FailUnpublish makes so many percent of the unpublishes end with an error, with nothing done.
func (d *Driver) FailUnpublish(percent int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = percent
}

// Calls are those that were begun, in that order.
func (d *Driver) Calls() []labdisk.Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Wrong lists what the storage would not have liked: a publish to a second node, and a call for a
// volume whose last one was in flight with a caller that lived.
func (d *Driver) Wrong() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.wrong)
}

// Held gives the "volume node" pairs that are published.
func (d *Driver) Held() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := map[string]bool{}
	for volume, nodes := range d.holders {
		for node := range nodes {
			held[volume+" "+node] = true
		}
	}
	return held
}

// caller is one who waits for an answer.
type caller struct {
	ctx    context.Context //nolint:containedctx // for whether the caller still waits
	socket string
}

var errClosed = errors.New("the attacher of this socket was killed")

// serve does one call.
func (d *Driver) serve(c caller, method, volume, node string) error {
	turn, err := d.begin(c, method, volume, node)
	if err != nil {
		return err
	}
	defer close(turn.end)
	if turn.before != nil {
		<-turn.before // the call of an attacher that was killed
	}
	first := time.Duration(0)
	if turn.latency > 0 {
		first = rand.N(turn.latency) //nolint:gosec // not a secret
	}
	time.Sleep(first)
	if !turn.fails {
		d.act(method, volume, node)
	}
	time.Sleep(turn.latency - first)
	code := codes.OK
	if turn.fails {
		code = codes.Internal
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[turn.at].End, d.calls[turn.at].Code = time.Now(), code.String()
	d.pending[volume] = slices.DeleteFunc(d.pending[volume], func(other caller) bool { return other == c })
	return status.Error(code, "the storage did nothing") // nil for OK
}

// turn is a call's place among those for its volume.
type turn struct {
	at          int // of the record
	latency     time.Duration
	fails       bool
	before, end chan struct{} // before is nil for the first call
}

func (d *Driver) begin(c caller, method, volume, node string) (turn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed[c.socket] {
		d.late++
		return turn{}, errClosed
	}
	for _, other := range d.pending[volume] {
		if other.ctx.Err() == nil && !d.closed[other.socket] {
			d.wrong = append(d.wrong, fmt.Sprintf("%s of %s on %s while another call for it was in flight", method, volume, node))
		}
	}
	d.pending[volume] = append(d.pending[volume], c)
	t := turn{at: len(d.calls), latency: d.latency, before: d.last[volume], end: make(chan struct{})}
	t.fails = method == Unpublish && rand.IntN(100) < d.fails //nolint:gosec // not a secret
	d.last[volume] = t.end
	d.calls = append(d.calls, labdisk.Call{
		Sequence: uint64(len(d.calls) + 1), Method: method, Driver: DriverName, Controller: true, Volume: volume, Node: node, Start: time.Now(),
	})
	return t, nil
}

// act is the moment at which the storage changes.
func (d *Driver) act(method, volume, node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if method == Unpublish {
		delete(d.holders[volume], node)
		return
	}
	for holder := range d.holders[volume] {
		if holder != node {
			d.wrong = append(d.wrong, fmt.Sprintf("%s was published to %s while %s held it", volume, node, holder))
		}
	}
	if d.holders[volume] == nil {
		d.holders[volume] = map[string]bool{}
	}
	d.holders[volume][node] = true
}

// ControllerGetCapabilities implements the Controller service.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// endpoint is the driver as an attacher has it.
type endpoint struct {
	*Driver
	socket string
}

// ControllerPublishVolume implements the Controller service.
func (d endpoint) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{}, d.serve(caller{ctx, d.socket}, Publish, r.GetVolumeId(), r.GetNodeId())
}

// ControllerUnpublishVolume implements the Controller service.
func (d endpoint) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, d.serve(caller{ctx, d.socket}, Unpublish, r.GetVolumeId(), r.GetNodeId())
}
