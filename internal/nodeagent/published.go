package nodeagent

import (
	"fmt"

	"belay.dev/belay/internal/nodevolume"
)

// checkPublished looks whether the driver did what it said. A container that runs on a target
// with nothing mounted there writes to the node's own disk, and nobody notices before the data is
// missed (csi-driver-nfs#762). What is staged cannot be looked for: drivers may
// keep that in their books alone.
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

// outOfSight is what to look at when a driver's work is not to be seen.
func (m *volumeManager) outOfSight() string {
	return fmt.Sprintf("if the driver runs in a container, it must mount %s with mountPropagation Bidirectional, and belay-node must see the mounts", m.root.Path("."))
}
