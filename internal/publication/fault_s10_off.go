//go:build !belay_fault_s10

package publication

// faultS10 is set in no program: see internal/simulation.
const faultS10 = false
