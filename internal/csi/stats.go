package csi

import (
	"context"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// Usage is the usage of bytes or inodes of a volume.
type Usage struct{ Available, Total, Used int64 }

// Condition is the health of a volume according to a driver with VOLUME_CONDITION.
type Condition struct {
	Abnormal bool
	Message  string
}

// VolumeStats is NodeGetVolumeStats' reply. What the driver did not return is nil.
type VolumeStats struct {
	Bytes, Inodes *Usage
	// Condition is nil if the driver does not have VOLUME_CONDITION, whatever its reply contains.
	Condition *Condition
}

// VolumeStats calls NodeGetVolumeStats; path is where the volume is published. A reply without usage is an error, as for kubelet,
// unless the driver has VOLUME_CONDITION.
func (n *Node) VolumeStats(ctx context.Context, id, path string, has NodeCapabilities) (VolumeStats, error) {
	reply, err := n.client.NodeGetVolumeStats(ctx, &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
	if err != nil {
		return VolumeStats{}, wrap("NodeGetVolumeStats", id, err)
	}
	if reply.GetUsage() == nil && !has.Condition {
		return VolumeStats{}, fmt.Errorf("NodeGetVolumeStats of volume %s: the reply contains no usage", id)
	}
	var stats VolumeStats
	for _, usage := range reply.GetUsage() {
		said := &Usage{Available: usage.GetAvailable(), Total: usage.GetTotal(), Used: usage.GetUsed()}
		switch usage.GetUnit() {
		case spec.VolumeUsage_BYTES:
			stats.Bytes = said
		case spec.VolumeUsage_INODES:
			stats.Inodes = said
		default:
		}
	}
	if has.Condition {
		condition := reply.GetVolumeCondition()
		stats.Condition = &Condition{Abnormal: condition.GetAbnormal(), Message: condition.GetMessage()}
	}
	return stats, nil
}
