// Package wait gives every wait of a test an end, and a message that says what the test waited for.
package wait

import (
	"testing"
	"time"
)

// Timeout bounds each wait. It is long enough for a machine that is busy with other work.
const Timeout = 2 * time.Minute

// Between two looks at a condition lies a fourth of the time that has passed, within these bounds: most waits are short, and each look
// of a long one costs an API server as much.
const soon, late = 5 * time.Millisecond, 20 * time.Millisecond

// Until waits until the condition holds.
func Until(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for begun := time.Now(); !holds(); time.Sleep(min(max(soon, time.Since(begun)/4), late)) {
		if time.Since(begun) > Timeout {
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
