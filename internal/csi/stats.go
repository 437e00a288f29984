package csi

import (
	"context"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// Usage is how much of one kind a volume has, and how much of it is taken.
type Usage struct{ Available, Total, Used int64 }

// Condition is what a driver with VOLUME_CONDITION says of a volume's health.
type Condition struct {
	Abnormal bool
	Message  string
}

// VolumeStats is NodeGetVolumeStats' reply. What the driver did not say is nil.
type VolumeStats struct {
	Bytes, Inodes *Usage
	// Condition is nil also where the driver does not have VOLUME_CONDITION: whatever its
	// reply says then means nothing.
	Condition *Condition
}

// VolumeStats calls NodeGetVolumeStats; path is where the volume is published. A reply
// without usage is an error, as kubelet has it, unless it can tell of the volume's health.
func (n *Node) VolumeStats(ctx context.Context, id, path string, has NodeCapabilities) (VolumeStats, error) {
	reply, err := n.client.NodeGetVolumeStats(ctx, &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
	if err != nil {
		return VolumeStats{}, wrap("NodeGetVolumeStats", id, err)
	}
	if reply.GetUsage() == nil && !has.Condition {
		return VolumeStats{}, fmt.Errorf("NodeGetVolumeStats of volume %s: the reply names no usage", id)
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
