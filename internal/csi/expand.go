package csi

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// Expand calls NodeExpandVolume: the volume, published at path, shall have at
// least size bytes. The error never holds a secret: it goes into claims and events.
func (n *Node) Expand(ctx context.Context, v NodeVolume, path string, size int64, has NodeCapabilities) error {
	_, err := n.client.NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
		VolumeId: v.ID, VolumePath: path, StagingTargetPath: v.StagingPath, CapacityRange: &spec.CapacityRange{RequiredBytes: size},
		VolumeCapability: v.capability(has), Secrets: v.Secrets,
	})
	return wrap("NodeExpandVolume", v.ID, v.hidden().redactError(err))
}

// Refusal is what a failed NodeExpandVolume says, by the codes that kubelet 1.36
// goes by (KEP-1790). The zero value says nothing: the driver may still be at work.
type Refusal int

// The refusals.
const (
	// NoRefusal: there was no answer, or one that says that the work goes on.
	NoRefusal Refusal = iota
	// RefusedForNow: it failed, and may succeed another time.
	RefusedForNow
	// RefusedInUse: the driver does not expand the volume while it is used.
	RefusedInUse
	// RefusedForGood: the volume cannot have that size.
	RefusedForGood
)

// RefusalOf classifies the error of NodeExpandVolume.
func RefusalOf(err error) Refusal {
	code, ok := Code(err)
	if !ok {
		return NoRefusal
	}
	switch code {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return NoRefusal
	case codes.FailedPrecondition:
		return RefusedInUse
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return RefusedForGood
	default:
		return RefusedForNow
	}
}
