package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// nodeDriver is the node service of a CSI driver that mounts nothing: its mounts are entries in a table. It may be
// registered with any number of node agents.
type nodeDriver struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	server *grpc.Server

	mu      sync.Mutex
	latency time.Duration // of each call
	// own is the driver's own time for each volume, since the last forget: all that its calls took.
	own map[string]time.Duration
	// publishedAt is when the volume was published, by handle.
	publishedAt map[string]time.Time
	changed     chan struct{} // closed and replaced with each publish
	measured    int           // calls for stats
}

func newNodeDriver() *nodeDriver {
	d := &nodeDriver{own: map[string]time.Duration{}, publishedAt: map[string]time.Time{}, changed: make(chan struct{})}
	d.server = grpc.NewServer(grpc.UnaryInterceptor(d.clock))
	csi.RegisterNodeServer(d.server, d)
	registration.RegisterRegistrationServer(d.server, d)
	return d
}

// register serves the driver below the root of a node agent, on one socket as a plugin without an endpoint does.
func (d *nodeDriver) register(root string) error {
	socket := filepath.Join(root, "plugins_registry", "bench.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("making the folder of registrations: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening for the node agent: %w", err)
	}
	go func() { _ = d.server.Serve(listener) }() // ends with stop
	return nil
}

func (d *nodeDriver) stop() { d.server.Stop() }

func (d *nodeDriver) setLatency(latency time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = latency
}

// clock takes the time of each call for a volume.
func (d *nodeDriver) clock(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	began := time.Now()
	named, ok := request.(interface{ GetVolumeId() string })
	if !ok {
		return handle(ctx, request)
	}
	d.mu.Lock()
	latency := d.latency
	d.mu.Unlock()
	if latency > 0 {
		if err := pause(ctx, latency); err != nil {
			return nil, err
		}
	}
	reply, err := handle(ctx, request)
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.own[named.GetVolumeId()] += now.Sub(began)
	if err == nil && strings.HasSuffix(info.FullMethod, "/NodePublishVolume") {
		d.publishedAt[named.GetVolumeId()] = now
		close(d.changed)
		d.changed = make(chan struct{})
	}
	return reply, err
}

// forget resets a volume.
func (d *nodeDriver) forget(volume string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.own, volume)
	delete(d.publishedAt, volume)
}

// ownTime is what the driver took for a volume since the last forget.
func (d *nodeDriver) ownTime(volume string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.own[volume]
}

// published waits until all these volumes have been published, and returns when the last was.
func (d *nodeDriver) published(ctx context.Context, volumes ...string) (time.Time, error) {
	for {
		var last time.Time
		missing := 0
		d.mu.Lock()
		for _, volume := range volumes {
			at, is := d.publishedAt[volume]
			if !is {
				missing++
			}
			if at.After(last) {
				last = at
			}
		}
		changed := d.changed
		d.mu.Unlock()
		if missing == 0 {
			return last, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return last, fmt.Errorf("waiting for %d volumes to be published, %d are missing: %w", len(volumes), missing, context.Cause(ctx))
		}
	}
}

// count is how many volumes have been published.
func (d *nodeDriver) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.publishedAt)
}

// statsCalls is how often the driver was asked for stats.
func (d *nodeDriver) statsCalls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.measured
}

func (d *nodeDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: driverName, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *nodeDriver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *nodeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "bench"}, nil
}

// NodeGetCapabilities claims what drivers of disks have: their volumes are measured, and their claims read
// again and again in case one grew. Without it nothing happens on a node at rest.
func (d *nodeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	reply := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	} {
		rpc := &csi.NodeServiceCapability_RPC{Type: kind}
		reply.Capabilities = append(reply.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}})
	}
	return reply, nil
}

func (d *nodeDriver) NodeGetVolumeStats(context.Context, *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	d.measured++
	d.mu.Unlock()
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Available: 1 << 29, Total: 1 << 30, Used: 1 << 29},
		{Unit: csi.VolumeUsage_INODES, Available: 1000, Total: 2000, Used: 1000},
	}}, nil
}

func (d *nodeDriver) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *nodeDriver) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume makes a link, as drivers do that mount elsewhere: there is no mount that the agent could see.
func (d *nodeDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := os.Symlink(r.GetStagingTargetPath(), r.GetTargetPath()); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("making the target: %w", err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *nodeDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := os.Remove(r.GetTargetPath()); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("removing the target: %w", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
