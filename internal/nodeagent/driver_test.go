package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// scriptedDriver is a CSI driver on a unix socket that does what a test says. Its
// mounts are entries in a table.
type scriptedDriver struct {
	csispec.UnimplementedIdentityServer
	csispec.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	w        *world
	name     string
	server   *grpc.Server
	listener net.Listener

	// file is the socket's name if it is not the usual one.
	file string

	mu sync.Mutex
	// Under mu:
	between  interceptor
	calls    []string
	requests []any
	mounts   map[string]string // path -> volume
	staged   map[string]string // volume -> path
	attempts map[string]int
	// hook runs before each call and may fail it.
	hook func(method, volume string, attempt int) error
	// after runs when a call has done its work and may lose the reply.
	after  func(method, volume string, attempt int) error
	caps   []csispec.NodeServiceCapability_RPC_Type
	info   *csispec.NodeGetInfoResponse
	plugin *registration.PluginInfo
	// stats answers NodeGetVolumeStats.
	stats func(context.Context, *csispec.NodeGetVolumeStatsRequest) (*csispec.NodeGetVolumeStatsResponse, error)
	// onNotify runs when the driver is told of its registration, and may fail that.
	onNotify func() error
	status   chan *registration.RegistrationStatus
}

func newScriptedDriver(w *world, name string) *scriptedDriver {
	w.Helper()
	d := &scriptedDriver{
		w: w, name: name, mounts: map[string]string{}, staged: map[string]string{}, attempts: map[string]int{},
		caps: []csispec.NodeServiceCapability_RPC_Type{csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		info: &csispec.NodeGetInfoResponse{
			NodeId: "id-of-" + w.name, MaxVolumesPerNode: 7,
			AccessibleTopology: &csispec.Topology{Segments: map[string]string{"topology.test.belay.dev/rack": "r1"}},
		},
		status: make(chan *registration.RegistrationStatus, 100),
	}
	d.plugin = &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, SupportedVersions: []string{"1.0.0"}}
	d.start()
	w.Cleanup(func() { d.stop() })
	return d
}

func (d *scriptedDriver) socket() string {
	return filepath.Join(d.w.root, registryDir, cmp.Or(d.file, d.name+"-reg.sock"))
}

// start serves registration and Node service on one socket, as a plugin without an endpoint does.
func (d *scriptedDriver) start() {
	d.w.Helper()
	must(d.w, os.MkdirAll(filepath.Dir(d.socket()), 0o750))
	var err error
	d.listener, err = net.Listen("unix", d.socket())
	must(d.w, err)
	d.server = grpc.NewServer(grpc.UnaryInterceptor(d.intercepting))
	csispec.RegisterIdentityServer(d.server, d)
	csispec.RegisterNodeServer(d.server, d)
	registration.RegisterRegistrationServer(d.server, d)
	go d.server.Serve(d.listener)
}

// stop closes the socket, which removes its file, also where the server has not begun to serve it.
func (d *scriptedDriver) stop() {
	d.server.Stop()
	d.listener.Close()
}

func (d *scriptedDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plugin, nil
}

func (d *scriptedDriver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.mu.Lock()
	hook := d.onNotify
	d.mu.Unlock()
	d.status <- s
	if hook != nil {
		if err := hook(); err != nil {
			return nil, err
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *scriptedDriver) NodeGetInfo(context.Context, *csispec.NodeGetInfoRequest) (*csispec.NodeGetInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info, nil
}

func (d *scriptedDriver) NodeGetCapabilities(context.Context, *csispec.NodeGetCapabilitiesRequest) (*csispec.NodeGetCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := &csispec.NodeGetCapabilitiesResponse{}
	for _, c := range d.caps {
		reply.Capabilities = append(reply.Capabilities, &csispec.NodeServiceCapability{
			Type: &csispec.NodeServiceCapability_Rpc{Rpc: &csispec.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return reply, nil
}

// begin records a call and runs the hook outside the lock.
func (d *scriptedDriver) begin(method, volume string, request any) (int, error) {
	d.mu.Lock()
	d.calls = append(d.calls, method+" "+strings.TrimPrefix(volume, "h-"+d.w.name+"-"))
	d.requests = append(d.requests, request)
	d.attempts[method+volume]++
	attempt, hook := d.attempts[method+volume], d.hook
	d.mu.Unlock()
	if hook == nil {
		return attempt, nil
	}
	return attempt, hook(method, volume, attempt)
}

func (d *scriptedDriver) end(method, volume string, attempt int) error {
	d.mu.Lock()
	after := d.after
	d.mu.Unlock()
	if after == nil {
		return nil
	}
	return after(method, volume, attempt)
}

func (d *scriptedDriver) NodeStageVolume(_ context.Context, r *csispec.NodeStageVolumeRequest) (*csispec.NodeStageVolumeResponse, error) {
	attempt, err := d.begin("Stage", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	if r.GetVolumeCapability().GetBlock() == nil {
		if info, err := os.Stat(r.StagingTargetPath); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("staging path is no directory: %w", err)
		}
	}
	d.mu.Lock()
	d.staged[r.VolumeId] = r.StagingTargetPath
	d.mounts[r.StagingTargetPath] = r.VolumeId
	d.mu.Unlock()
	return &csispec.NodeStageVolumeResponse{}, d.end("Stage", r.VolumeId, attempt)
}

func (d *scriptedDriver) NodePublishVolume(_ context.Context, r *csispec.NodePublishVolumeRequest) (*csispec.NodePublishVolumeResponse, error) {
	attempt, err := d.begin("Publish", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		err = os.WriteFile(r.TargetPath, nil, 0o600)
	} else if err = os.Mkdir(r.TargetPath, 0o750); os.IsExist(err) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("make the target: %w", err)
	}
	d.mu.Lock()
	d.mounts[r.TargetPath] = r.VolumeId
	d.mu.Unlock()
	return &csispec.NodePublishVolumeResponse{}, d.end("Publish", r.VolumeId, attempt)
}

func (d *scriptedDriver) NodeUnpublishVolume(_ context.Context, r *csispec.NodeUnpublishVolumeRequest) (*csispec.NodeUnpublishVolumeResponse, error) {
	attempt, err := d.begin("Unpublish", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	delete(d.mounts, r.TargetPath)
	d.mu.Unlock()
	if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return &csispec.NodeUnpublishVolumeResponse{}, d.end("Unpublish", r.VolumeId, attempt)
}

func (d *scriptedDriver) NodeUnstageVolume(_ context.Context, r *csispec.NodeUnstageVolumeRequest) (*csispec.NodeUnstageVolumeResponse, error) {
	attempt, err := d.begin("Unstage", r.VolumeId, r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	delete(d.mounts, r.StagingTargetPath)
	delete(d.staged, r.VolumeId)
	d.mu.Unlock()
	return &csispec.NodeUnstageVolumeResponse{}, d.end("Unstage", r.VolumeId, attempt)
}

func (d *scriptedDriver) mountPoints() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	points := make([]string, 0, len(d.mounts))
	for path := range d.mounts {
		points = append(points, path)
	}
	return points, nil
}

// made are the calls so far.
func (d *scriptedDriver) made() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// lastRequest is the last request of a kind.
func lastRequest[R any](d *scriptedDriver) R {
	d.w.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, request := range slices.Backward(d.requests) {
		if r, ok := request.(R); ok {
			return r
		}
	}
	d.w.Fatal("the driver was not called so")
	panic("unreachable")
}
