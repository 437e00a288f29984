//go:build !belay_faults

package planted

import "time"

// Every fault is off, and the compiler removes the code it guards.
const (
	S1, S1Attacher, S2, S3, S4, S5, S6, S6Attacher, S7, S9, S10 = false, false, false, false, false, false, false, false, false, false, false

	Abandoned, Bogus, Doubt, Identity, Isolation, Lease, Listing, Places, PreMount, Recreated, SharedPlace, SharedWake, Wake, Wall = false, false, false, false, false, false, false, false, false, false, false, false, false, false

	Clock time.Duration = 0
)
