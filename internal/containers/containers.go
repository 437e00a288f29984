package containers

import "strings"

// RunningError says that containers of a pod run, or may.
type RunningError struct {
	// What runs, in words.
	What []string
}

func (e *RunningError) Error() string { return strings.Join(e.What, ", ") }
