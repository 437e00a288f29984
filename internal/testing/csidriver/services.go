package csidriver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func (d *Driver) GetPluginInfo(ctx context.Context, _ *csispec.GetPluginInfoRequest) (*csispec.GetPluginInfoResponse, error) {
	d.Lock()
	name, on := d.Name, d.OnGetPluginInfo
	d.Unlock()
	var err error
	if on != nil {
		name, err = on(ctx)
	}
	return &csispec.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, err
}

func (d *Driver) Probe(ctx context.Context, _ *csispec.ProbeRequest) (*csispec.ProbeResponse, error) {
	d.Lock()
	d.probes++
	nth, on := d.probes, d.OnProbe
	d.Unlock()
	if on == nil {
		return &csispec.ProbeResponse{}, nil // ready
	}
	ready, err := on(ctx, nth)
	return &csispec.ProbeResponse{Ready: wrapperspb.Bool(ready)}, err
}

func (d *Driver) GetPluginCapabilities(context.Context, *csispec.GetPluginCapabilitiesRequest) (*csispec.GetPluginCapabilitiesResponse, error) {
	return &csispec.GetPluginCapabilitiesResponse{Capabilities: []*csispec.PluginCapability{{
		Type: &csispec.PluginCapability_Service_{Service: &csispec.PluginCapability_Service{Type: csispec.PluginCapability_Service_CONTROLLER_SERVICE}},
	}}}, nil
}

func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	d.Lock()
	defer d.Unlock()
	if d.Plugin != nil {
		return d.Plugin, nil
	}
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.Name, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.Lock()
	on := d.OnNotify
	d.Unlock()
	d.Registrations <- s
	if on != nil {
		if err := on(); err != nil {
			return nil, err
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *Driver) ControllerGetCapabilities(ctx context.Context, _ *csispec.ControllerGetCapabilitiesRequest) (*csispec.ControllerGetCapabilitiesResponse, error) {
	d.Lock()
	services, on := d.ControllerServices, d.OnGetCapabilities
	d.Unlock()
	if on != nil {
		if err := on(ctx); err != nil {
			return nil, err
		}
	}
	reply := &csispec.ControllerGetCapabilitiesResponse{}
	for _, service := range services {
		reply.Capabilities = append(reply.Capabilities, &csispec.ControllerServiceCapability{
			Type: &csispec.ControllerServiceCapability_Rpc{Rpc: &csispec.ControllerServiceCapability_RPC{Type: service}},
		})
	}
	return reply, nil
}

func (d *Driver) ControllerPublishVolume(ctx context.Context, r *csispec.ControllerPublishVolumeRequest) (*csispec.ControllerPublishVolumeResponse, error) {
	publishContext, err := d.controllerCall(ctx, Call{Method: "Publish", Volume: r.GetVolumeId(), Node: r.GetNodeId(), Request: r, Secrets: r.GetSecrets()})
	if err != nil {
		return nil, err
	}
	return &csispec.ControllerPublishVolumeResponse{PublishContext: publishContext}, nil
}

func (d *Driver) ControllerUnpublishVolume(ctx context.Context, r *csispec.ControllerUnpublishVolumeRequest) (*csispec.ControllerUnpublishVolumeResponse, error) {
	if _, err := d.controllerCall(ctx, Call{Method: "Unpublish", Volume: r.GetVolumeId(), Node: r.GetNodeId(), Request: r, Secrets: r.GetSecrets()}); err != nil {
		return nil, err
	}
	return &csispec.ControllerUnpublishVolumeResponse{}, nil
}

// record completes a call, adds it to the record, and returns how many were before; hold the lock.
func (d *Driver) record(ctx context.Context, c *Call) (nth int) {
	c.Socket, _ = ctx.Value(socketKey{}).(string)
	c.At = time.Now()
	d.calls = append(d.calls, *c)
	return len(d.calls) - 1
}

func (d *Driver) controllerCall(ctx context.Context, c Call) (map[string]string, error) {
	d.Lock()
	if ctx.Err() != nil { // a handler that runs late: nothing waits for this call any more
		d.Unlock()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	nth := d.record(ctx, &c)
	if d.inFlight == nil {
		d.inFlight = map[string][]context.Context{}
	}
	if slices.ContainsFunc(d.inFlight[c.Volume], func(other context.Context) bool { return other.Err() == nil }) { // its caller waits for it
		d.Overlaps++
	}
	d.inFlight[c.Volume] = append(d.inFlight[c.Volume], ctx)
	answer := d.Answer
	d.Unlock()
	defer func() {
		d.Lock()
		d.inFlight[c.Volume] = slices.DeleteFunc(d.inFlight[c.Volume], func(other context.Context) bool { return other == ctx })
		d.Unlock()
	}()
	if answer == nil {
		return nil, nil
	}
	return answer(ctx, c, nth)
}

func (d *Driver) ListVolumes(ctx context.Context, r *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
	d.Lock()
	d.Lists++
	list := d.List
	d.Unlock()
	if list == nil {
		return nil, status.Error(codes.Unimplemented, "the test sets no list")
	}
	return list(ctx, r)
}

func (d *Driver) NodeGetInfo(ctx context.Context, _ *csispec.NodeGetInfoRequest) (*csispec.NodeGetInfoResponse, error) {
	d.Lock()
	info, on := d.NodeInfo, d.OnNodeGetInfo
	d.Unlock()
	if on != nil {
		return on(ctx)
	}
	return info, nil
}

func (d *Driver) NodeGetCapabilities(context.Context, *csispec.NodeGetCapabilitiesRequest) (*csispec.NodeGetCapabilitiesResponse, error) {
	d.Lock()
	defer d.Unlock()
	reply := &csispec.NodeGetCapabilitiesResponse{}
	for _, service := range d.NodeServices {
		reply.Capabilities = append(reply.Capabilities, &csispec.NodeServiceCapability{
			Type: &csispec.NodeServiceCapability_Rpc{Rpc: &csispec.NodeServiceCapability_RPC{Type: service}},
		})
	}
	return reply, nil
}

// nodeCall records a call of the node service and carries it out.
func (d *Driver) nodeCall(ctx context.Context, method, volume string, request any, do func() error) error {
	d.Lock()
	d.record(ctx, &Call{Method: method, Volume: volume, Request: request})
	if d.attempts == nil {
		d.attempts = map[string]int{}
	}
	d.attempts[method+volume]++
	attempt, before := d.attempts[method+volume], d.Before
	d.Unlock()
	if before != nil {
		if err := before(method, volume, attempt); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	d.Lock()
	after := d.After
	d.Unlock()
	if after != nil {
		return after(method, volume, attempt)
	}
	return nil
}

// mounted changes the mount table: no volume means that nothing is mounted at the path.
func (d *Driver) mounted(path, volume string) {
	d.Lock()
	defer d.Unlock()
	if volume == "" {
		delete(d.Mounts, path)
	} else {
		d.Mounts[path] = volume
	}
}

func (d *Driver) NodeStageVolume(ctx context.Context, r *csispec.NodeStageVolumeRequest) (*csispec.NodeStageVolumeResponse, error) {
	return &csispec.NodeStageVolumeResponse{}, d.nodeCall(ctx, "Stage", r.VolumeId, r, func() error {
		if r.GetVolumeCapability().GetBlock() == nil {
			if info, err := os.Stat(r.StagingTargetPath); err != nil || !info.IsDir() {
				return fmt.Errorf("staging path is no directory: %w", err)
			}
		}
		d.mounted(r.StagingTargetPath, r.VolumeId)
		d.Lock()
		defer d.Unlock()
		d.Staged[r.VolumeId] = r.StagingTargetPath
		return nil
	})
}

func (d *Driver) NodePublishVolume(ctx context.Context, r *csispec.NodePublishVolumeRequest) (*csispec.NodePublishVolumeResponse, error) {
	return &csispec.NodePublishVolumeResponse{}, d.nodeCall(ctx, "Publish", r.VolumeId, r, func() (err error) {
		if r.GetVolumeCapability().GetBlock() != nil {
			err = os.WriteFile(r.TargetPath, nil, 0o600)
		} else if err = os.Mkdir(r.TargetPath, 0o750); os.IsExist(err) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("make the target: %w", err)
		}
		d.mounted(r.TargetPath, r.VolumeId)
		return nil
	})
}

func (d *Driver) NodeUnpublishVolume(ctx context.Context, r *csispec.NodeUnpublishVolumeRequest) (*csispec.NodeUnpublishVolumeResponse, error) {
	return &csispec.NodeUnpublishVolumeResponse{}, d.nodeCall(ctx, "Unpublish", r.VolumeId, r, func() error {
		d.mounted(r.TargetPath, "")
		if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	})
}

func (d *Driver) NodeUnstageVolume(ctx context.Context, r *csispec.NodeUnstageVolumeRequest) (*csispec.NodeUnstageVolumeResponse, error) {
	return &csispec.NodeUnstageVolumeResponse{}, d.nodeCall(ctx, "Unstage", r.VolumeId, r, func() error {
		d.mounted(r.StagingTargetPath, "")
		d.Lock()
		defer d.Unlock()
		delete(d.Staged, r.VolumeId)
		return nil
	})
}

func (d *Driver) NodeExpandVolume(ctx context.Context, r *csispec.NodeExpandVolumeRequest) (*csispec.NodeExpandVolumeResponse, error) {
	return &csispec.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.GetRequiredBytes()},
		d.nodeCall(ctx, "Expand", r.VolumeId, r, func() error { return nil })
}

func (d *Driver) NodeGetVolumeStats(ctx context.Context, r *csispec.NodeGetVolumeStatsRequest) (reply *csispec.NodeGetVolumeStatsResponse, err error) {
	err = d.nodeCall(ctx, "Stats", r.VolumeId, r, func() (err error) {
		d.Lock()
		answer := d.Stats
		d.Unlock()
		if answer != nil {
			reply, err = answer(ctx, r)
			return err
		}
		reply = HalfFull()
		return nil
	})
	return reply, err
}

// HalfFull is a reply about a volume with 40 of 100 bytes and 3 of 10 inodes used.
func HalfFull() *csispec.NodeGetVolumeStatsResponse {
	return &csispec.NodeGetVolumeStatsResponse{Usage: []*csispec.VolumeUsage{
		{Unit: csispec.VolumeUsage_BYTES, Total: 100, Available: 60, Used: 40},
		{Unit: csispec.VolumeUsage_INODES, Total: 10, Available: 7, Used: 3},
	}}
}
