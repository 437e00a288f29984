//go:build !belay_fault_clock

package attachdetach

import "time"

// faultClock is zero in every program: see internal/simulation.
const faultClock time.Duration = 0
