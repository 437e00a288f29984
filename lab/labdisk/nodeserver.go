package labdisk

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeServer is the CSI Node service of one personality. What is staged and published it reads from the kernel.
type nodeServer struct {
	csi.UnimplementedNodeServer
	*nodeDriver
	driver string
}

// hasStage is false for the personality whose volumes are published at once.
func (s *nodeServer) hasStage() bool { return s.driver != DriverLocal }

// begin checks what all calls have in common and locks the volume. Errors are CSI errors.
func (s *nodeServer) begin(ctx context.Context, volume, field, path string) (unlock func(), err error) {
	if volume == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if path == "" {
		return nil, status.Errorf(codes.InvalidArgument, "%s is empty", field)
	}
	if unlock = s.lock(volume); unlock == nil {
		return nil, status.Errorf(codes.Aborted, "another call for volume %s is under way on node %s", volume, s.opts.NodeID)
	}
	if ctx.Err() != nil { // abandoned: a later call may have been answered
		unlock()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return unlock, nil
}

func (s *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if s.hasStage() {
		types = append(types, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if s.driver == DriverDisk {
		types = append(types, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return resp, nil
}

func (s *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.opts.NodeID, MaxVolumesPerNode: s.opts.MaxVolumes,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{TopologyKey: s.opts.Zone}}}, nil
}

func (s *nodeServer) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if !s.hasStage() {
		return nil, status.Errorf(codes.Unimplemented, "%s has no stage", s.driver)
	}
	unlock, err := s.begin(ctx, r.GetVolumeId(), "staging_target_path", r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkCapability(s.driver, r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	st, err := s.attached(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := s.checkEpoch(ctx, r.GetPublishContext(), st.Ino); err != nil {
		return nil, err
	}
	switch {
	case s.driver != DriverDisk:
		err = s.stageShare(r)
	case r.GetVolumeCapability().GetBlock() != nil:
		err = s.stageBlock(ctx, r, st)
	default:
		err = s.stageDisk(ctx, r, st)
	}
	if err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *nodeServer) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if !s.hasStage() {
		return nil, status.Errorf(codes.Unimplemented, "%s has no stage", s.driver)
	}
	unlock, err := s.begin(ctx, r.GetVolumeId(), "staging_target_path", r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.unstage(ctx, r.GetVolumeId(), r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (s *nodeServer) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	unlock, err := s.begin(ctx, r.GetVolumeId(), "target_path", r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkCapability(s.driver, r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if s.hasStage() && r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.FailedPrecondition, "staging_target_path is empty")
	}
	publish := s.publish
	if s.isInline(r) {
		publish = s.publishInline
	}
	if err := publish(ctx, r); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (s *nodeServer) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	unlock, err := s.begin(ctx, r.GetVolumeId(), "target_path", r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := unmountAll(s.mounter, r.GetTargetPath()); err != nil {
		return nil, status.Errorf(codes.Internal, "unpublish volume %s: %v", r.GetVolumeId(), err)
	}
	if err := removeTarget(r.GetTargetPath()); err != nil {
		return nil, status.Errorf(codes.Internal, "unpublish volume %s: %v", r.GetVolumeId(), err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (s *nodeServer) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is empty")
	}
	m, ok, err := s.mountAt(r.GetVolumePath())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if !ok || m.volume != r.GetVolumeId() {
		if _, err := os.Stat(r.GetVolumePath()); errors.Is(err, fs.ErrNotExist) {
			return nil, status.Errorf(codes.NotFound, "path %s does not exist", r.GetVolumePath())
		}
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", r.GetVolumeId(), r.GetVolumePath())
	}
	if m.fsType == "" {
		v, err := s.known(ctx, r.GetVolumeId())
		if err != nil {
			return nil, err
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Bytes}}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.path, &st); err != nil {
		return nil, status.Errorf(codes.Internal, "ask file system at %s: %v", m.path, err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize, Available: int64(st.Bavail) * st.Bsize,
			Used: int64(st.Blocks-st.Bfree) * st.Bsize},
		{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},
	}}, nil
}
