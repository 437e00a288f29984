// Package decision has the words that the three deciders share: attachment, publication and nodevolume each turn one snapshot
// into what to do next, and say of everything else why it waits.
package decision

import (
	"maps"
	"slices"
	"time"
)

// Knowledge is what is known of a yes-or-no matter. Its zero value is Unknown: an error, a timeout, a missing object or an unfilled
// cache never reads as No.
type Knowledge uint8

// The values of Knowledge.
const (
	Unknown Knowledge = iota
	No
	Yes
)

// String returns the word for logs.
func (k Knowledge) String() string { return [...]string{"unknown", "no", "yes"}[k] }

// Known turns a bool that was really observed into Knowledge.
func Known(b bool) Knowledge {
	if b {
		return Yes
	}
	return No
}

// Reason says why something waits, in one word that logs, metrics, events and tools use unchanged.
type Reason string

// Exit is what ends a wait. There is no wait without one.
type Exit struct {
	// By is the event that wakes the volume.
	By string
	// Timed says that the wait also ends at a time.
	Timed bool
}

// Exits has the exit of each reason that can be waited for.
type Exits map[Reason]Exit

// Reasons lists the reasons in alphabetical order, for metrics that must have a series for each.
func (e Exits) Reasons() []Reason { return slices.Sorted(maps.Keys(e)) }

// Earlier returns the earlier of two times to decide again, of which zero is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
