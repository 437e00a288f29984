//go:build belay_fault_clock

package attachdetach

import "time"

// faultClock plants a fault against S2, which the simulation has to find: the request of a
// detach is backdated, so that the unmount timeout has passed as soon as it begins.
const faultClock = 10 * time.Minute
