package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// driverName is the CSI driver of the bench.
const driverName = "bench.belay.dev"

// driver is a CSI driver's controller service that keeps all in memory and answers at once, or
// after a latency, so that what is measured is the plane. Its volumes are exclusive but for those that isShared names.
type driver struct {
	csi.UnimplementedControllerServer

	name    string
	latency time.Duration // of each publish and unpublish
	probe   string        // a volume for which calls are answered at once; none if empty
	// lists is set if the driver says which volumes are published to which nodes, so that attachers compare.
	lists  bool
	server *grpc.Server
	done   chan error

	mu         sync.Mutex
	holder     map[string]string // node by exclusive volume, from the begin of its publish to the end of its unpublish
	inFlight   map[string]int    // calls by volume, or by volume and node for a shared one
	order      []string          // the volumes of the list that is being read
	calls      calls
	publishes  int
	compared   int // how often the whole list was asked for
	violations []string
}

// calls counts what a driver was asked.
type calls struct {
	// publishes and unpublishes that were begun, whatever came of them.
	publishes, unpublishes int
	// overlaps are calls that began while another one for the same volume was in flight.
	overlaps int
	// secondNode are publishes to a node while another one held the volume. The driver refuses them.
	secondNode int
}

// since is what was counted after before.
func (c calls) since(before calls) calls {
	return calls{
		publishes: c.publishes - before.publishes, unpublishes: c.unpublishes - before.unpublishes,
		overlaps: c.overlaps - before.overlaps, secondNode: c.secondNode - before.secondNode,
	}
}

func newDriver(name string, latency time.Duration) *driver {
	return &driver{name: name, latency: latency, done: make(chan error, 1), holder: map[string]string{}, inFlight: map[string]int{}}
}

// serve listens on a unix socket until stop is called.
func (d *driver) serve(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening for the attacher: %w", err)
	}
	d.server = grpc.NewServer()
	csi.RegisterIdentityServer(d.server, labdisk.Identity{Driver: d.name})
	csi.RegisterControllerServer(d.server, d)
	go func() { d.done <- d.server.Serve(listener) }()
	return nil
}

// stop ends the service.
func (d *driver) stop() error {
	d.server.Stop()
	if err := <-d.done; err != nil {
		return fmt.Errorf("serving the driver: %w", err)
	}
	return nil
}

// asked is what the driver was asked so far.
func (d *driver) asked() calls {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// begin counts a call for a volume; the returned function ends it. Calls for a shared volume overlap only at one node.
func (d *driver) begin(volume, node string, count *int) (end func()) {
	if isShared(volume) {
		volume += " at " + node
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	*count++
	if d.inFlight[volume] > 0 {
		d.calls.overlaps++
	}
	d.inFlight[volume]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.inFlight[volume]--; d.inFlight[volume] == 0 {
			delete(d.inFlight, volume)
		}
	}
}

// work takes as long as the storage would.
func (d *driver) work(ctx context.Context, volume string) error {
	if d.latency == 0 || volume == d.probe {
		return nil
	}
	if err := pause(ctx, d.latency); err != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// wrong reports whether an exclusive volume was to be published to two nodes.
func (d *driver) wrong() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, v := range d.violations {
		errs = append(errs, errors.New(v))
	}
	return errors.Join(errs...)
}

// published counts the successful calls of ControllerPublishVolume.
func (d *driver) published() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.publishes
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	can := []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	if d.lists {
		can = append(can, csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range can {
		rpc := &csi.ControllerServiceCapability_RPC{Type: c}
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return r, nil
}

// listed is how many volumes a page of the list has at most: an answer of gRPC may have 4 MiB.
const listed = 10000

// ListVolumes pages through the volumes in the order of their names; a token is the first name of a page.
func (d *driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.GetStartingToken() == "" {
		d.compared++
		d.order = slices.Sorted(maps.Keys(d.holder))
	}
	from, _ := slices.BinarySearch(d.order, r.GetStartingToken())
	to := min(from+listed, len(d.order))
	answer := &csi.ListVolumesResponse{}
	if to < len(d.order) {
		answer.NextToken = d.order[to]
	}
	for _, volume := range d.order[from:to] {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{
			Volume: &csi.Volume{VolumeId: volume}, Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{d.holder[volume]}},
		})
	}
	return answer, nil
}

// comparisons is how often the whole list was asked for.
func (d *driver) comparisons() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.compared
}

func (d *driver) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	defer d.begin(r.GetVolumeId(), r.GetNodeId(), &d.calls.publishes)()
	if err := d.hold(r.GetVolumeId(), r.GetNodeId()); err != nil {
		return nil, err
	}
	if err := d.work(ctx, r.GetVolumeId()); err != nil {
		return nil, err // it may be published
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.publishes++
	return &csi.ControllerPublishVolumeResponse{}, nil
}

// hold gives a volume to a node, unless another one has it.
func (d *driver) hold(volume, node string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if isShared(volume) {
		return nil
	}
	if holder := d.holder[volume]; holder != "" && holder != node {
		d.calls.secondNode++
		d.violations = append(d.violations, fmt.Sprintf("volume %s was to be published to %s while %s holds it", volume, node, holder))
		return status.Errorf(codes.FailedPrecondition, "volume %s is published to %s", volume, holder)
	}
	d.holder[volume] = node
	return nil
}

// release takes a volume from the node that has it, without a call.
func (d *driver) release(volume string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.holder, volume)
}

func (d *driver) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	defer d.begin(r.GetVolumeId(), r.GetNodeId(), &d.calls.unpublishes)()
	if err := d.work(ctx, r.GetVolumeId()); err != nil {
		return nil, err // it may still be published
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder[r.GetVolumeId()] == r.GetNodeId() {
		delete(d.holder, r.GetVolumeId())
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
