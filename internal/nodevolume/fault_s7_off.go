//go:build !belay_fault_s7

package nodevolume

// faultS7 is set in no program: see the simulation.
const faultS7 = false
