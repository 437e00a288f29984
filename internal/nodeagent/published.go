package nodeagent

import (
	"fmt"

	"belay.dev/belay/internal/nodevolume"
)

// checkPublished checks that the volume is mounted at its target. Otherwise a container would write to the node's own disk, unnoticed until
// the data is missed (csi-driver-nfs#762). A stage cannot be checked: it need not mount anything.
func (m *volumeManager) checkPublished(r nodevolume.Record) error {
	placed, err := m.root.IsPublished(r.Path, r.Block)
	target := m.root.Path(r.Path)
	switch {
	case err != nil:
		return fmt.Errorf("check whether volume %s is mounted at its target: %w", r.Handle, err)
	case placed:
		return nil
	case r.Block:
		return fmt.Errorf("driver %s returned OK to NodePublishVolume of volume %s, but there is no block device at %s; %s",
			r.Driver, r.Handle, target, m.outOfSight())
	default:
		return fmt.Errorf("driver %s returned OK to NodePublishVolume of volume %s, but nothing is mounted at %s; %s",
			r.Driver, r.Handle, target, m.outOfSight())
	}
}

// mountVisibilityHint is what to check when the agent does not see a driver's mount.
func (m *volumeManager) outOfSight() string {
	return fmt.Sprintf("if the driver runs in a container, it must mount %s with mountPropagation Bidirectional, and belay-node must see the mounts", m.root.Path("."))
}
