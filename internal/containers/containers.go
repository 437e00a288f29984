package containers

import "strings"

// RunningError is returned when containers of a pod are running, or may be.
type RunningError struct {
	// What describes what is running.
	What []string
}

func (e *RunningError) Error() string { return strings.Join(e.What, ", ") }
