//go:build !belay_fault_s1_attacher

package publication

// faultS1 is set in no program: see internal/simulation.
const faultS1 = false
