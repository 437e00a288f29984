//go:build belay_fault_s4

package publication

// faultS4 plants a fault against S4, which the simulation has to find: a detach does not
// wait for the call that is in flight.
const faultS4 = true
