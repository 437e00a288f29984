package csi

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/nodevolume"
)

// Expand calls NodeExpandVolume: the volume, published at path, should have at least size bytes. The error never contains a secret:
// it is stored in claims and events.
func (n *Node) Expand(ctx context.Context, v NodeVolume, path string, size int64, has NodeCapabilities) error {
	_, err := n.client.NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
		VolumeId: v.ID, VolumePath: path, StagingTargetPath: v.StagingPath, CapacityRange: &spec.CapacityRange{RequiredBytes: size},
		VolumeCapability: v.capability(has), Secrets: v.Secrets,
	})
	return wrap("NodeExpandVolume", v.ID, v.secretValues().redactError(err))
}

// RefusalOf classifies the error of NodeExpandVolume.
func RefusalOf(err error) nodevolume.Refusal {
	code, ok := Code(err)
	if !ok {
		return nodevolume.NotRefused
	}
	switch code {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return nodevolume.NotRefused
	case codes.FailedPrecondition:
		return nodevolume.RefusedInUse
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return nodevolume.RefusedForGood
	default:
		return nodevolume.RefusedForNow
	}
}
