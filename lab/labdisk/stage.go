package labdisk

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// All errors that leave this file are CSI errors.

// mkfsPackages says which Debian package has which tool.
var mkfsPackages = map[string]string{"ext4": "e2fsprogs", "xfs": "xfsprogs"}

// checkEpoch compares the publish_context with the attachment of now, unless the storage forbids nothing.
func (s *nodeServer) checkEpoch(ctx context.Context, publishContext map[string]string, inode uint64) error {
	err := checkEpoch(publishContext, inode)
	if err == nil {
		return nil
	}
	if permissive, askErr := s.client.permissive(ctx); askErr == nil && permissive {
		return nil
	}
	return err
}

// stageDisk puts a file system on the volume if it is blank, and mounts it.
func (s *nodeServer) stageDisk(ctx context.Context, r *csi.NodeStageVolumeRequest, st unix.Stat_t) error {
	volume, staging := r.GetVolumeId(), tablePath(r.GetStagingTargetPath())
	fsType := cmp.Or(r.GetVolumeCapability().GetMount().GetFsType(), "ext4")
	done, err := s.alreadyStaged(ctx, volume, staging, st.Ino, r.GetVolumeCapability().GetMount().GetFsType())
	if err != nil || done {
		return err
	}
	if _, err := exec.LookPath("mkfs." + fsType); err != nil {
		return status.Errorf(codes.Internal, "node %s has no mkfs.%s: install it (apt-get install %s)", s.opts.NodeID, fsType, mkfsPackages[fsType])
	}
	readOnly := st.Mode&0o200 == 0
	options := slices.Clone(r.GetVolumeCapability().GetMount().GetMountFlags())
	if readOnly {
		options = append(options, "ro")
	}
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return status.Errorf(codes.Internal, "make staging path: %v", err)
	}
	// What an earlier attachment, or a call that was cut short, left behind goes first.
	if err := freeLoops(ctx, s.opts.FuseDir, volume); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	device, err := bindLoop(s.file(volume), readOnly, true)
	if err != nil {
		return bindStatus(volume, err)
	}
	err = s.mounter.FormatAndMount(device.Name(), staging, fsType, options)
	// With the mount in place this is not its last user; without, the device is freed.
	if closeErr := device.Close(); err == nil && closeErr != nil {
		err = closeErr
	}
	if err != nil {
		return status.Errorf(codes.Internal, "make or mount %s on volume %s: %v", fsType, volume, err)
	}
	return nil
}

func bindStatus(volume string, err error) error {
	if errors.Is(err, errNoLoop) {
		return status.Errorf(codes.ResourceExhausted, "stage volume %s: %v", volume, err)
	}
	return status.Errorf(codes.Internal, "stage volume %s: %v", volume, err)
}

// alreadyStaged reports whether the volume is mounted at the path in its present attachment. A mount of an attachment that
// has ended can do no I/O any more; it is taken away.
func (s *nodeServer) alreadyStaged(ctx context.Context, volume, staging string, inode uint64, fsType string) (bool, error) {
	m, ok, err := s.mountAt(staging)
	if err != nil {
		return false, status.Error(codes.Internal, err.Error())
	}
	if !ok {
		return false, nil
	}
	if m.volume != volume {
		return false, status.Errorf(codes.AlreadyExists, "volume %s is staged at %s", m.volume, staging)
	}
	live, err := loop{device: m.device}.inode()
	if err == nil && live == inode {
		if fsType != "" && m.fsType != fsType {
			return false, status.Errorf(codes.AlreadyExists, "volume %s is staged at %s with %s, not %s", volume, staging, m.fsType, fsType)
		}
		return true, nil
	}
	return false, s.unstage(ctx, volume, staging)
}

// stageBlock binds a loop device, which stays until it is unstaged: a raw block volume has no mount to hold it.
func (s *nodeServer) stageBlock(ctx context.Context, r *csi.NodeStageVolumeRequest, st unix.Stat_t) error {
	volume := r.GetVolumeId()
	device, err := s.liveLoop(volume, st.Ino)
	if err != nil || device != "" {
		return err
	}
	if err := freeLoops(ctx, s.opts.FuseDir, volume); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	f, err := bindLoop(s.file(volume), st.Mode&0o200 == 0, false)
	if err != nil {
		return bindStatus(volume, err)
	}
	if err := f.Close(); err != nil {
		return status.Errorf(codes.Internal, "stage volume %s: close loop device: %v", volume, err)
	}
	return nil
}

// liveLoop finds the loop device over the volume in its present attachment, or "".
func (s *nodeServer) liveLoop(volume string, inode uint64) (string, error) {
	loops, err := loopsOf(s.opts.FuseDir, volume)
	if err != nil {
		return "", status.Error(codes.Internal, err.Error())
	}
	for _, l := range loops {
		if have, err := l.inode(); err == nil && have == inode {
			return l.device, nil
		}
	}
	return "", nil
}

// stageShare mounts the shared directory at the staging path.
func (s *nodeServer) stageShare(r *csi.NodeStageVolumeRequest) error {
	volume, staging := r.GetVolumeId(), tablePath(r.GetStagingTargetPath())
	m, ok, err := s.mountAt(staging)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if ok && m.volume != volume {
		return status.Errorf(codes.AlreadyExists, "volume %s is staged at %s", m.volume, staging)
	}
	if ok {
		var st unix.Statfs_t
		if unix.Statfs(staging, &st) == nil {
			return nil
		}
		// A mount of an attachment that has ended.
		if err := unmountAll(s.mounter, staging); err != nil {
			return status.Errorf(codes.Internal, "take away dead mount of volume %s: %v", volume, err)
		}
	}
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return status.Errorf(codes.Internal, "make staging path: %v", err)
	}
	if err := s.mounter.Mount(s.file(volume), staging, "", []string{"bind"}); err != nil {
		return status.Errorf(codes.Internal, "mount share %s: %v", volume, err)
	}
	return nil
}

// unstage takes away everything that stage made, whatever state it is in. It is done when nothing is left.
func (s *nodeServer) unstage(ctx context.Context, volume, staging string) error {
	all, err := s.mounts()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	for _, m := range all {
		if m.volume == volume && m.path != tablePath(staging) {
			return status.Errorf(codes.FailedPrecondition, "volume %s is still published at %s", volume, m.path)
		}
	}
	if err := unmountAll(s.mounter, staging); err != nil {
		return status.Errorf(codes.Internal, "unstage volume %s: %v", volume, err)
	}
	if s.driver != DriverDisk {
		return nil
	}
	if err := freeLoops(ctx, s.opts.FuseDir, volume); err != nil {
		return status.Errorf(codes.Internal, "unstage volume %s: %v", volume, err)
	}
	return nil
}

// publish bind-mounts the staged volume at the target.
func (s *nodeServer) publish(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	volume, target := r.GetVolumeId(), tablePath(r.GetTargetPath())
	source, block, err := s.source(ctx, r)
	if err != nil {
		return err
	}
	done, err := s.alreadyPublished(r)
	if err != nil || done {
		return err
	}
	if err := makeTarget(target, block); err != nil {
		return status.Errorf(codes.Internal, "make target path: %v", err)
	}
	options := []string{"bind"}
	if r.GetReadonly() {
		options = append(options, "ro")
	}
	if err := s.mounter.Mount(source, target, "", options); err != nil {
		return status.Errorf(codes.Internal, "publish volume %s: %v", volume, errors.Join(err, unmountAll(s.mounter, target), removeTarget(target)))
	}
	return nil
}

// alreadyPublished reports whether the volume is at the target as asked for, and refuses what is in the way.
func (s *nodeServer) alreadyPublished(r *csi.NodePublishVolumeRequest) (bool, error) {
	volume, target := r.GetVolumeId(), tablePath(r.GetTargetPath())
	all, err := s.mounts()
	if err != nil {
		return false, status.Error(codes.Internal, err.Error())
	}
	for _, m := range all {
		switch {
		case m.path == target && m.volume == volume && m.readOnly == r.GetReadonly():
			return true, nil
		case m.path == target && m.volume == volume:
			return false, status.Errorf(codes.AlreadyExists, "volume %s is published at %s with readonly=%t", volume, target, m.readOnly)
		case m.path == target:
			return false, status.Errorf(codes.AlreadyExists, "volume %s is published at %s", m.volume, target)
		case m.volume == volume && m.path != tablePath(r.GetStagingTargetPath()) && isSingleWriter(r):
			return false, status.Errorf(codes.FailedPrecondition, "volume %s may be used by one pod only and is published at %s", volume, m.path)
		}
	}
	return false, nil
}

func isSingleWriter(r *csi.NodePublishVolumeRequest) bool {
	return r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
}

// source is what a publish bind-mounts: the staging path, the loop device, or the share itself where there is no stage.
func (s *nodeServer) source(ctx context.Context, r *csi.NodePublishVolumeRequest) (path string, block bool, err error) {
	volume := r.GetVolumeId()
	if !s.hasStage() || r.GetVolumeCapability().GetBlock() != nil {
		st, err := s.attached(ctx, volume)
		if err != nil {
			return "", false, err
		}
		if !s.hasStage() {
			return s.file(volume), false, nil
		}
		device, err := s.liveLoop(volume, st.Ino)
		if err == nil && device == "" {
			err = status.Errorf(codes.FailedPrecondition, "volume %s is not staged on node %s", volume, s.opts.NodeID)
		}
		return device, true, err
	}
	m, ok, err := s.mountAt(r.GetStagingTargetPath())
	if err != nil {
		return "", false, status.Error(codes.Internal, err.Error())
	}
	if !ok || m.volume != volume {
		if _, err := s.known(ctx, volume); err != nil {
			return "", false, err
		}
		return "", false, status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %s", volume, r.GetStagingTargetPath())
	}
	return m.path, false, nil
}

// makeTarget makes the mount point: a file for a device, else a directory.
func makeTarget(target string, file bool) error {
	if !file {
		return os.MkdirAll(target, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}
