package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/planted"
)

// Doubt is about a publish that had no answer, or none that is final, at a driver that is known to answer OK to an unpublish while such a
// publish is pending. That OK does not count.
type Doubt struct {
	// Until is when the publish can no longer take effect.
	Until time.Time
	// Sole: it is the only such publish, and the volume was not left at the node ID before. A list that has it there then shows that this
	// publish took effect.
	Sole bool
	// Listed is when the last list began that had the volume at the node ID; zero for none.
	Listed time.Time
}

// MayStillAttach is by what the message of a wait for a doubt to end is recognized.
const MayStillAttach = "the driver has confirmed the detach, but may still carry out an attach that it gave no final answer to"

func inDoubtMessage(until time.Time) string {
	return MayStillAttach + ": the volume is detached again at " + FormatTime(until)
}

// DoubtUntil records until when a publish may take effect; a zero time is no doubt. sole is Doubt.Sole, but for other doubts about the call.
func (c Call) DoubtUntil(until time.Time, sole bool) Call {
	if !until.IsZero() && !planted.Doubt {
		c.Doubt = &Doubt{Until: until, Sole: sole && c.Doubt == nil}
	}
	return c
}

// latestDoubt is the Doubt of all places: several node IDs may be those of one machine.
func (c Call) latestDoubt() (latest *Doubt) {
	for _, last := range append([]Call{c}, c.Previous...) {
		if last.Doubt != nil && (latest == nil || last.Doubt.Until.After(latest.Until)) {
			latest = last.Doubt
		}
	}
	return latest
}

// over: the publish can no longer take effect.
func (d *Doubt) over(now time.Time) bool { return d != nil && !now.Before(d.Until) }

// BegunAt ends a doubt that an unpublish begins after: its answer counts.
func (c Call) BegunAt(now time.Time) Call {
	if c.Verb == Unpublish && c.Doubt.over(now) {
		c.Doubt = nil
		c.Previous = slices.Clone(c.Previous)
		for i := range c.Previous {
			if p := &c.Previous[i]; p.Doubt.over(now) && !p.confirmed(Unpublish, p.NodeID) {
				p.Doubt = nil
			}
		}
	}
	return c
}

// Listed returns the call after a complete list, and whether that has changed the doubt. A list that has the volume at the node ID shows that
// the publish took effect, so it is unpublished at once, and one that began after the driver confirmed that and no longer has it there ends the
// doubt. A list that never had it there proves nothing: the driver may make it from the record that misled the unpublish.
func (c Call) Listed(list Listing, handle string) (after Call, changed bool) {
	doubt, entry := c.Doubt, list.Volumes[handle]
	if doubt == nil || !doubt.Sole || entry == nil || c.InFlight || len(c.Previous) > 0 || !c.Ended.Before(list.Began) {
		return c, false
	}
	otherForm := func(id string) bool { return !list.Nodes[id] }
	switch {
	case slices.Contains(entry.NodeIDs, c.NodeID):
		listed := *doubt
		listed.Listed = list.Began
		c.Doubt = &listed
	case doubt.Listed.IsZero(), !c.confirmed(Unpublish, c.NodeID), c.Ended.Before(doubt.Listed), slices.ContainsFunc(entry.NodeIDs, otherForm):
		return c, false
	default:
		c.Doubt = nil
	}
	return c, true
}

// inDoubt reports whether an unpublish was confirmed, and has to be confirmed again, not before that time.
func (a Attachment) inDoubt(verb Verb, nodeID string) (until time.Time, yes bool) {
	last := a.Call.at(nodeID)
	yes = verb == Unpublish && last.confirmed(Unpublish, nodeID) && last.Doubt != nil
	if yes && !last.Doubt.Listed.After(last.Ended) {
		until = last.Doubt.Until
	}
	return until, yes
}
