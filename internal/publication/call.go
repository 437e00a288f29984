package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/planted"
)

// Call is what is known about the last call for an attachment, and by Previous about those for other node IDs: each place is worked
// off by itself, with its own back-off. Unless a call is Confirmed, its effect is unknown: the driver may have carried it out, may do
// so later, or not at all.
type Call struct {
	NodeID   string // the CSI node ID that was sent
	Verb     Verb
	InFlight bool
	// Cancelled: the call in flight was abandoned, and is about to end.
	Cancelled bool
	// Sent: the driver may have received the request, or an earlier one for this node ID that was not undone; false if every attempt
	// failed before it was sent.
	Sent bool
	// Precaution: the volume was never to be published at this node ID for the attachment, and is unpublished there all the same. Where
	// that fails, nothing is left to undo.
	Precaution bool
	// OnRecord: this process sent no publish to the node ID, and unpublishes it because it was recorded.
	OnRecord bool

	// Confirmed: the driver answered OK.
	Confirmed bool
	// Recorded: the result of this call is in the attachment's status.
	Recorded bool

	// Republish: the attachment was recorded as attached when the call was sent.
	Republish bool

	// Unanswered: the driver did not answer the last attempt within its timeout.
	Unanswered bool
	// NotFound: the driver answered the last attempt that it does not know the node, or the volume.
	NotFound bool
	// Refused: the driver answered the last attempt with a code that may mean that another node has the volume.
	Refused bool
	// Doubt is nil for none, and for a driver that does not answer too early.
	Doubt *Doubt

	// Failures is the number of attempts in a row that failed.
	Failures int
	// Ended is when the last attempt ended.
	Ended time.Time
	// Due is when the next attempt is due, if an attempt out of turn left that as it was; while a call is in flight, when its attempt was due.
	Due time.Time
	// RetryAt is when the call may be repeated before its back-off has ended; zero if it may not.
	RetryAt time.Time
	// Message is the last attempt's error.
	Message string
	// Inputs are the attachment's Inputs at the last attempt.
	Inputs string

	// Previous has the last call for each other node ID, the latest of them last.
	Previous []Call
}

// Begin returns the call that is sent next. attached: the attachment is recorded as attached.
func (c Call) Begin(verb Verb, nodeID, inputs string, attached bool) Call {
	before, failures := c.at(nodeID), 0
	if before.Verb == verb && !before.Confirmed {
		failures = before.Failures
	}
	previous := c.previousFor(nodeID)
	if verb == Publish {
		// Another ID may be one of the same machine: that the volume was taken from there before says nothing from now on.
		previous = slices.DeleteFunc(previous, func(p Call) bool { return p.confirmed(Unpublish, p.NodeID) })
	}
	return Call{Verb: verb, NodeID: nodeID, InFlight: true, Sent: true, Failures: failures, Inputs: inputs,
		OnRecord:  verb == Unpublish && (before.Verb == NoCall || before.OnRecord),
		Republish: attached && verb == Publish, Doubt: c.latestDoubt(), Previous: previous}
}

// BeginElsewhere returns an unpublish of a node ID that is not recorded for the attachment.
func (c Call) BeginElsewhere(nodeID, inputs string) Call {
	begun, before := c.Begin(Unpublish, nodeID, inputs, false), c.at(nodeID)
	begun.Precaution = !before.Sent || before.Precaution
	return begun
}

// Excludes reports whether the call forbids another one for the same volume now (S4): it is in flight, and the volume is
// exclusive or both calls are for one node ID.
func (c Call) Excludes(exclusive, samePlace bool) bool {
	return !planted.S4 && c.InFlight && (exclusive || samePlace)
}

// NodeIDs are those of all calls.
func (c Call) NodeIDs() (ids []string) {
	for _, last := range append([]Call{c}, c.Previous...) {
		if last.NodeID != "" && !slices.Contains(ids, last.NodeID) {
			ids = append(ids, last.NodeID)
		}
	}
	return ids
}

// Refuse records an attempt that ended before anything was sent.
func (c Call) Refuse(verb Verb, nodeID, inputs string) Call {
	before := c.at(nodeID)
	before.Previous = c.previousFor(nodeID)
	if before.Verb != verb || before.Confirmed {
		before = Call{Verb: verb, NodeID: nodeID, Sent: before.Sent && !before.unpublishedFrom(nodeID), Doubt: before.Doubt, Previous: before.Previous}
	}
	before.Inputs = inputs
	return before
}

// Confirm records the driver's OK.
func (c Call) Confirm(now time.Time) Call {
	c.InFlight, c.Cancelled, c.Confirmed, c.Failures, c.Ended = false, false, true, 0, now
	if c.Verb == Publish {
		c.Doubt = nil // what was doubted has taken effect
	}
	return c
}

// Fail records an attempt that ended without OK, so its effect is unknown.
func (c Call) Fail(now time.Time, message string, unanswered bool) Call {
	c.InFlight, c.Cancelled, c.Confirmed, c.Recorded, c.NotFound, c.Refused = false, false, false, false, false, false
	if !now.Before(c.Due) { // it was in turn
		c.Failures++
		c.Due = time.Time{}
	}
	c.Ended, c.Message, c.Unanswered, c.RetryAt = now, message, unanswered, time.Time{}
	return c
}

// RetryFrom allows a failed call to be repeated from a time on.
func (c Call) RetryFrom(at time.Time) Call {
	if c.RetryAt.IsZero() || at.Before(c.RetryAt) {
		c.RetryAt = at
	}
	return c
}

// Settle returns the call with the unpublish of the node ID confirmed: the driver has confirmed it under another ID of the same machine.
func (c Call) Settle(nodeID string) Call {
	if c.NodeID == nodeID && c.Sent {
		return Call{Verb: Unpublish, NodeID: nodeID, Sent: true, Confirmed: true, Ended: c.Ended, Previous: c.Previous}
	}
	c.Previous = slices.Clone(c.Previous)
	for i, last := range c.Previous {
		if last.NodeID == nodeID {
			c.Previous[i] = last.Settle(nodeID)
		}
	}
	return c
}

// at returns the last call for a node ID; the zero value if there was none.
func (c Call) at(nodeID string) Call {
	if c.NodeID == nodeID {
		return c
	}
	if i := slices.IndexFunc(c.Previous, func(p Call) bool { return p.NodeID == nodeID }); i >= 0 {
		return c.Previous[i]
	}
	return Call{}
}

// calledSince reports whether the last call for one node ID came after that for the other.
func (c Call) calledSince(nodeID, other string) bool {
	latest := append(slices.Clone(c.Previous), c)
	isOf := func(id string) func(Call) bool { return func(p Call) bool { return p.NodeID == id } }
	return slices.IndexFunc(latest, isOf(nodeID)) > slices.IndexFunc(latest, isOf(other))
}

// previousFor returns Previous for a next call with that node ID.
func (c Call) previousFor(nodeID string) []Call {
	left := slices.DeleteFunc(slices.Clone(c.Previous), func(p Call) bool { return p.NodeID == nodeID || p.NodeID == c.NodeID })
	if c.Sent && c.NodeID != nodeID {
		last := c
		last.Previous = nil
		left = append(left, last)
	}
	return left
}

// failed reports whether the last call ended without the driver's OK.
func (c Call) failed() bool { return c.Verb != NoCall && !c.InFlight && !c.Confirmed }

// confirmed reports whether the last call was this one and the driver replied OK.
func (c Call) confirmed(verb Verb, nodeID string) bool {
	return c.Verb == verb && c.Confirmed && !c.InFlight && c.NodeID == nodeID
}

// unpublishedFrom reports whether the driver confirmed an unpublish of the node ID without a doubt, and no later call was sent for it.
func (c Call) unpublishedFrom(nodeID string) bool {
	last := c.at(nodeID)
	return last.confirmed(Unpublish, nodeID) && last.Doubt == nil
}

// unknownAt reports whether the driver answered the last unpublish of the node ID that it knows no such place.
func (c Call) unknownAt(nodeID string) bool {
	last := c.at(nodeID)
	return last.Verb == Unpublish && last.failed() && last.NotFound && last.Doubt == nil
}

// called reports whether a call was sent for the node ID, other than as a precaution.
func (c Call) called(nodeID string) bool { last := c.at(nodeID); return last.Sent && !last.Precaution }

// publishedTo returns the node IDs that the driver may have published to by calls of this process.
func (c Call) publishedTo() (ids []string) {
	for _, last := range append([]Call{c}, c.Previous...) {
		if c.called(last.NodeID) && !c.unpublishedFrom(last.NodeID) {
			ids = append(ids, last.NodeID)
		}
	}
	return ids
}
