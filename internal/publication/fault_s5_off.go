//go:build !belay_fault_s5

package publication

// faultS5 is set in no program: see internal/simulation.
const faultS5 = false
