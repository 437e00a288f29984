//go:build belay_fault_s6

package attachdetach

// faultS6 plants a fault against S6, which the simulation has to find: a delete is not bound
// to the version that was decided on.
const faultS6 = true
