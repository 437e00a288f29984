package sidecars

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
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

// Driver is a CSI driver's controller service in memory. As a storage would, it goes on with what
// it has begun when its caller is killed, and works on one call per volume at a time.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	server *grpc.Server
	done   chan error

	mu      sync.Mutex
	latency time.Duration
	fails   int // percent of unpublishes
	calls   []labdisk.Call
	pending map[string][]context.Context // callers, by volume
	last    map[string]chan struct{}     // by volume: closed when its last call has ended
	holders map[string]map[string]bool   // node IDs by volume
	wrong   []string
}

// Serve listens on a unix socket until Stop.
func Serve(socket string) (*Driver, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listening for the attachers: %w", err)
	}
	d := &Driver{
		server: grpc.NewServer(), done: make(chan error, 1),
		pending: map[string][]context.Context{}, last: map[string]chan struct{}{}, holders: map[string]map[string]bool{},
	}
	csi.RegisterIdentityServer(d.server, d)
	csi.RegisterControllerServer(d.server, d)
	go func() { d.done <- d.server.Serve(listener) }()
	return d, nil
}

// Stop ends the service.
func (d *Driver) Stop() error {
	d.server.Stop()
	if err := <-d.done; err != nil {
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

// serve does one call.
func (d *Driver) serve(ctx context.Context, method, volume, node string) error {
	turn := d.begin(ctx, method, volume, node)
	defer close(turn.end)
	if turn.before != nil {
		<-turn.before // the call of an attacher that was killed
	}
	first := time.Duration(0)
	if turn.latency > 0 {
		first = rand.N(turn.latency) //nolint:gosec // nobody may guess, nobody has to
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
	d.pending[volume] = slices.DeleteFunc(d.pending[volume], func(c context.Context) bool { return c == ctx })
	return status.Error(code, "the storage did nothing") // nil for OK
}

// turn is a call's place among those for its volume.
type turn struct {
	at          int // of the record
	latency     time.Duration
	fails       bool
	before, end chan struct{} // before is nil for the first call
}

func (d *Driver) begin(ctx context.Context, method, volume, node string) turn {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, caller := range d.pending[volume] {
		if caller.Err() == nil {
			d.wrong = append(d.wrong, fmt.Sprintf("%s of %s on %s while another call for it was in flight", method, volume, node))
		}
	}
	d.pending[volume] = append(d.pending[volume], ctx)
	t := turn{at: len(d.calls), latency: d.latency, before: d.last[volume], end: make(chan struct{})}
	t.fails = method == Unpublish && rand.IntN(100) < d.fails //nolint:gosec // nobody may guess, nobody has to
	d.last[volume] = t.end
	d.calls = append(d.calls, labdisk.Call{
		Sequence: uint64(len(d.calls) + 1), Method: method, Driver: DriverName, Controller: true, Volume: volume, Node: node, Start: time.Now(),
	})
	return t
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

// GetPluginInfo implements the Identity service.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: DriverName, VendorVersion: "1.0.0"}, nil
}

// GetPluginCapabilities implements the Identity service.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}}}, nil
}

// Probe implements the Identity service.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements the Controller service.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// ControllerPublishVolume implements the Controller service.
func (d *Driver) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{}, d.serve(ctx, Publish, r.GetVolumeId(), r.GetNodeId())
}

// ControllerUnpublishVolume implements the Controller service.
func (d *Driver) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, d.serve(ctx, Unpublish, r.GetVolumeId(), r.GetNodeId())
}
