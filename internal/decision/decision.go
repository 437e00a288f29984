// Package decision has the vocabulary that the three deciders share: attachment, publication and nodevolume each turn a snapshot
// into what to do next, and why the rest waits.
package decision

import (
	"maps"
	"slices"
	"time"
)

// Knowledge is the answer to a yes-or-no question. Its zero value is Unknown: an error, a timeout, a missing object or an unfilled
// cache never reads as No.
type Knowledge uint8

// The values of Knowledge.
const (
	Unknown Knowledge = iota
	No
	Yes
)

// String returns the name for logs.
func (k Knowledge) String() string { return [...]string{"unknown", "no", "yes"}[k] }

// Known turns an observed bool into Knowledge.
func Known(b bool) Knowledge {
	if b {
		return Yes
	}
	return No
}

// Reason is why something waits: one word that logs, metrics, events and tools use unchanged.
type Reason string

// Exit is what ends a wait. Every wait has one.
type Exit struct {
	// By is the event that wakes the volume.
	By string
	// Timed: the wait also ends at a time.
	Timed bool
}

// Exits has the exit of each reason to wait.
type Exits map[Reason]Exit

// Reasons lists the reasons in alphabetical order, for metrics that must have a series for each.
func (e Exits) Reasons() []Reason { return slices.Sorted(maps.Keys(e)) }

// Earlier returns the earlier of two times to decide again, where zero means never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
