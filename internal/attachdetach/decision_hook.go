package attachdetach

import (
	"time"

	"belay.dev/belay/internal/attachment"
)

// DecisionFor is what would be decided on the volume at that time by what the caches show
// now. Nothing is done. The simulation compares it with what a volume sleeps on: an event
// that changes it must wake the volume.
func (c *Controller) DecisionFor(k attachment.VolumeKey, now time.Time) attachment.Decision {
	s := c.state.peek(k, &turn{}, c)
	return attachment.Decide(now, s.want, s.seen, c.policy)
}

// Unanswered reports whether steps of the volume have no answer yet: it is looked at again
// when they do.
func (c *Controller) Unanswered(k attachment.VolumeKey) bool {
	c.stragglers.mu.Lock()
	defer c.stragglers.mu.Unlock()
	return len(c.stragglers.nodes[k]) > 0
}
