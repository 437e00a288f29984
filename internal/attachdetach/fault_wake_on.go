//go:build belay_fault_wake

package attachdetach

// faultWake plants a fault that the simulation has to find: a node's health wakes none of the
// volumes that wait for it.
const faultWake = true
