package labdisk

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type accessMode = csi.VolumeCapability_AccessMode_Mode

// singleNodeModes are the modes of a disk with one holder.
var singleNodeModes = []accessMode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

// checkCapability says, as a CSI error, why the personality cannot serve the capability.
func checkCapability(driver string, c *csi.VolumeCapability) error {
	mode := c.GetAccessMode().GetMode()
	modes := append(slices.Clone(singleNodeModes), csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	if driver != DriverDisk {
		modes = append(modes, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	}
	switch {
	case c.GetMount() == nil && c.GetBlock() == nil:
		return status.Error(codes.InvalidArgument, "the volume capability is missing, or asks for neither mount nor block")
	case c.GetBlock() != nil && driver != DriverDisk:
		return status.Errorf(codes.InvalidArgument, "%s has directories only, no block volumes", driver)
	case !slices.Contains(modes, mode):
		return status.Errorf(codes.InvalidArgument, "%s does not support access mode %s", driver, mode)
	case driver == DriverDisk && !slices.Contains([]string{"", "ext4", "xfs"}, c.GetMount().GetFsType()):
		return status.Errorf(codes.InvalidArgument, "%s makes ext4 and xfs, not %q", driver, c.GetMount().GetFsType())
	}
	return nil
}

// supports reports whether the personality can serve the capability.
func supports(driver string, c *csi.VolumeCapability) bool { return checkCapability(driver, c) == nil }

func checkCapabilities(driver string, all []*csi.VolumeCapability) error {
	if len(all) == 0 {
		return status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	for _, c := range all {
		if err := checkCapability(driver, c); err != nil {
			return err
		}
	}
	return nil
}

func isMultiNode(m accessMode) bool {
	return slices.Contains([]accessMode{
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
	}, m)
}

func isReaderOnly(m accessMode) bool {
	return m == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY || m == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
}
