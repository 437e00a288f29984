package labdisk

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inlineKey is set in the volume context of an inline volume, for drivers with podInfoOnMount.
const inlineKey = "csi.storage.k8s.io/ephemeral"

// isInline: the volume is made with this publish and goes with its unpublish. Only DriverLocal has such volumes.
func (s *nodeServer) isInline(r *csi.NodePublishVolumeRequest) bool {
	return s.driver == DriverLocal && r.GetVolumeContext()[inlineKey] == "true"
}

// publishInline mounts an empty memory file system: the fabric knows nothing of it, and no other pod can see it.
func (s *nodeServer) publishInline(_ context.Context, r *csi.NodePublishVolumeRequest) error {
	target := tablePath(r.GetTargetPath())
	done, err := isMountPoint(target)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if done {
		return nil
	}
	if err := makeTarget(target, false); err != nil {
		return status.Errorf(codes.Internal, "make target path: %v", err)
	}
	options := []string{"size=16m", "mode=0777"}
	if r.GetReadonly() {
		options = append(options, "ro")
	}
	if err := s.mounter.Mount("inline", target, "tmpfs", options); err != nil {
		return status.Errorf(codes.Internal, "publish inline volume %s: %v", r.GetVolumeId(), errors.Join(err, removeTarget(target)))
	}
	return nil
}
