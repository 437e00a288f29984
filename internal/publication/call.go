package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/planted"
)

// Call is what is known about the last call for an attachment. Unless it is Confirmed, its effect is unknown: the driver may have
// carried it out, may do so later, or not at all.
type Call struct {
	Verb     Verb
	NodeID   string // the CSI node ID that was sent
	InFlight bool
	// Sent: the driver may have received the request, or an earlier one that was not undone; false if every attempt failed before
	// it was sent.
	Sent bool

	// Confirmed: the driver answered OK.
	Confirmed bool
	// Recorded: the result of this call is in the attachment's status.
	Recorded bool

	// Republish: the attachment was recorded as attached when the call was sent.
	Republish bool

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
	// Unanswered: the driver did not answer the last attempt within its timeout.
	Unanswered bool
	// Inputs are the attachment's Inputs at the last attempt.
	Inputs string

	// Previous has the result of the last call for each other node ID.
	Previous []PreviousCall
}

// PreviousCall is the result of the calls for one node ID.
type PreviousCall struct {
	NodeID      string
	Unpublished bool // the driver confirmed an unpublish
}

// Begin returns the call that is sent next. attached: the attachment is recorded as attached.
func (c Call) Begin(verb Verb, nodeID, inputs string, attached bool) Call {
	failures := c.Failures
	if c.Verb != verb || c.Confirmed {
		failures = 0
	}
	return Call{Verb: verb, NodeID: nodeID, InFlight: true, Sent: true, Failures: failures, Inputs: inputs,
		Republish: attached && verb == Publish, Previous: c.previousFor(nodeID)}
}

// Excludes reports whether the call forbids another one for the same volume now (S4): it is in flight, and the volume is
// exclusive or both calls are for one node.
func (c Call) Excludes(exclusive, sameNode bool) bool {
	return !planted.S4 && c.InFlight && (exclusive || sameNode)
}

// Refuse records an attempt that ended before anything was sent.
func (c Call) Refuse(verb Verb, nodeID, inputs string) Call {
	if c.Verb != verb || c.NodeID != nodeID || c.Confirmed {
		c = Call{Verb: verb, NodeID: nodeID, Previous: c.previousFor(nodeID)}
	}
	c.Inputs = inputs
	return c
}

// Confirm records the driver's OK.
func (c Call) Confirm(now time.Time) Call {
	c.InFlight, c.Confirmed, c.Failures, c.Ended = false, true, 0, now
	return c
}

// Fail records an attempt that ended without OK, so its effect is unknown.
func (c Call) Fail(now time.Time, message string, unanswered bool) Call {
	c.InFlight, c.Confirmed, c.Recorded = false, false, false
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

// previousFor returns Previous for a next call with that node ID.
func (c Call) previousFor(nodeID string) []PreviousCall {
	left := slices.DeleteFunc(slices.Clone(c.Previous), func(l PreviousCall) bool { return l.NodeID == nodeID || l.NodeID == c.NodeID })
	if c.Sent && c.NodeID != nodeID {
		left = append(left, PreviousCall{NodeID: c.NodeID, Unpublished: c.unpublishedFrom(c.NodeID)})
	}
	return left
}

// failed reports whether the last call ended without the driver's OK.
func (c Call) failed() bool { return c.Verb != NoCall && !c.InFlight && !c.Confirmed }

// confirmed reports whether the last call was this one and the driver replied OK.
func (c Call) confirmed(verb Verb, nodeID string) bool {
	return c.Verb == verb && c.Confirmed && !c.InFlight && c.NodeID == nodeID
}

// unpublishedFrom reports whether the driver confirmed an unpublish of the node ID, and no later call was sent for it.
func (c Call) unpublishedFrom(nodeID string) bool {
	return c.confirmed(Unpublish, nodeID) || slices.Contains(c.Previous, PreviousCall{nodeID, true})
}

// called reports whether a call was sent for the node ID.
func (c Call) called(nodeID string) bool {
	return c.Sent && c.NodeID == nodeID || slices.ContainsFunc(c.Previous, func(l PreviousCall) bool { return l.NodeID == nodeID })
}

// publishedTo returns the node IDs that the driver may have published to by calls of this process.
func (c Call) publishedTo() (ids []string) {
	if c.Sent && !c.unpublishedFrom(c.NodeID) {
		ids = append(ids, c.NodeID)
	}
	for _, l := range c.Previous {
		if !l.Unpublished {
			ids = append(ids, l.NodeID)
		}
	}
	return ids
}
