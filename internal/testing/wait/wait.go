// Package wait gives every wait of a test an end, and a message that says what the test waited for.
package wait

import (
	"testing"
	"time"
)

// Timeout bounds each wait. It is long enough for a machine that is busy with other work.
const Timeout = 2 * time.Minute

// interval is the time between two looks at a condition.
const interval = 5 * time.Millisecond

// Until waits until the condition holds.
func Until(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(Timeout); !holds(); time.Sleep(interval) {
		if time.Now().After(end) {
			tb.Fatalf("timed out after %v waiting until %s", Timeout, what)
		}
	}
}

// For waits for a value from a channel, or for its close, and returns the value.
func For[T any](tb testing.TB, what string, c <-chan T) (value T) {
	tb.Helper()
	select {
	case value = <-c:
	case <-time.After(Timeout):
		tb.Fatalf("timed out after %v waiting for %s", Timeout, what)
	}
	return value
}
