package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// driverName is the CSI driver of the bench.
const driverName = "bench.belay.dev"

// driver is a CSI driver's controller service that keeps all in memory and answers at once, so
// that what is measured is the plane. All its volumes are exclusive.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	server *grpc.Server
	done   chan error

	mu         sync.Mutex
	holder     map[string]string // node by volume
	publishes  int
	violations []string
}

// serveDriver listens on a unix socket until stop is called.
func serveDriver(socket string) (*driver, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listening for the attacher: %w", err)
	}
	d := &driver{server: grpc.NewServer(), done: make(chan error, 1), holder: map[string]string{}}
	csi.RegisterIdentityServer(d.server, d)
	csi.RegisterControllerServer(d.server, d)
	go func() { d.done <- d.server.Serve(listener) }()
	return d, nil
}

// stop ends the service and tells what the storage would not have liked.
func (d *driver) stop() error {
	d.server.Stop()
	if err := <-d.done; err != nil {
		return fmt.Errorf("serving the driver: %w", err)
	}
	return d.wrong()
}

// wrong tells whether an exclusive volume was to be published to two nodes.
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

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driverName, VendorVersion: "1.0.0"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: service}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{
		{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}},
	}}, nil
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if holder := d.holder[r.GetVolumeId()]; holder != "" && holder != r.GetNodeId() {
		d.violations = append(d.violations, fmt.Sprintf("volume %s was to be published to %s while %s holds it", r.GetVolumeId(), r.GetNodeId(), holder))
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published to %s", r.GetVolumeId(), holder)
	}
	d.holder[r.GetVolumeId()] = r.GetNodeId()
	d.publishes++
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder[r.GetVolumeId()] == r.GetNodeId() {
		delete(d.holder, r.GetVolumeId())
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
