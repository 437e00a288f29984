package attachdetach

import (
	"time"

	"belay.dev/belay/internal/attachment"
)

// DecisionFor is what would be decided on the volume at that time by what the caches show
// now, without the steps at nodes that do not answer. Nothing is done. The simulation compares it with what a volume sleeps on: an event
// that changes it must wake the volume.
func (c *Controller) DecisionFor(k attachment.VolumeKey, now time.Time) attachment.Decision {
	s := c.world.peek(k, &turn{}, c)
	d := attachment.Decide(now, s.want, s.seen, c.policy)
	d.Steps = c.stragglers.without(k, s.want.Shared == attachment.Yes, d.Steps)
	return d
}
