//go:build !belay_fault_s4

package attacher

// faultS4 is set in no program: see internal/simulation.
const faultS4 = false
