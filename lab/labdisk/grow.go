package labdisk

import (
	"context"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// about is what is known of the volume now.
func (v *volume) about() Volume {
	v.gate.RLock()
	defer v.gate.RUnlock()
	return v.Volume
}

// grow makes a disk larger, also one that is in use: who holds it sees the new size when it asks. One that is large
// enough stays as it is.
func (f *fabric) grow(driver, handle string, bytes int64) (Volume, error) {
	f.mu.Lock()
	v, err := f.find(driver, handle)
	if err != nil {
		f.mu.Unlock()
		return Volume{}, err
	}
	v.gate.Lock()
	if bytes > v.Bytes {
		if err = v.data.Truncate(bytes); err == nil {
			v.Bytes = bytes
		}
	}
	grown := v.Volume
	v.gate.Unlock()
	f.mu.Unlock()
	if err != nil {
		return Volume{}, fmt.Errorf("enlarge file of volume %s: %w", handle, describeDisk(f.opts.Dir, err))
	}
	return grown, f.save()
}

func (c *controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	switch {
	case c.driver != DriverDisk:
		return nil, status.Errorf(codes.Unimplemented, "volumes of %s have no size", c.driver)
	case r.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	case r.GetCapacityRange() == nil:
		return nil, status.Error(codes.InvalidArgument, "capacity_range is missing")
	}
	size, err := c.size(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	v, err := c.fabric.grow(c.driver, r.GetVolumeId(), size)
	if err != nil {
		return nil, statusOf(err)
	}
	if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 && v.Bytes > limit {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes: disks do not shrink", v.Handle, v.Bytes)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Bytes, NodeExpansionRequired: true}, nil
}

// NodeExpandVolume gives the loop device under the volume, and the file system on it, the size that the disk has.
func (s *nodeServer) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if s.driver != DriverDisk {
		return nil, status.Errorf(codes.Unimplemented, "volumes of %s have no size", s.driver)
	}
	unlock, err := s.begin(ctx, r.GetVolumeId(), "volume_path", r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	m, ok, err := s.mountAt(r.GetVolumePath())
	switch {
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	case !ok || m.volume != r.GetVolumeId():
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", r.GetVolumeId(), r.GetVolumePath())
	}
	v, err := s.known(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if want := r.GetCapacityRange().GetRequiredBytes(); want > v.Bytes {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes, not %d: the controller has not enlarged it", v.Handle, v.Bytes, want)
	}
	if err := growLoop(s.file(v.Handle), m.device); err != nil {
		return nil, status.Errorf(codes.Internal, "expand volume %s: %v", v.Handle, err)
	}
	if m.fsType != "" {
		if _, err := mount.NewResizeFs(s.mounter.Exec).Resize(m.device, m.path); err != nil {
			return nil, status.Errorf(codes.Internal, "expand the %s on volume %s: %v", m.fsType, v.Handle, err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Bytes}, nil
}

// growLoop has a loop device take the size that the file under it has now.
func growLoop(backing, device string) error {
	if _, err := os.Stat(backing); err != nil { // the kernel learns the size with it
		return fmt.Errorf("ask for the size: %w", err)
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open loop device: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("enlarge loop device %s: %w", device, err)
	}
	return nil
}
