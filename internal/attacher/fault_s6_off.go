//go:build !belay_fault_s6_attacher

package attacher

// faultS6 is set in no program: see internal/simulation.
const faultS6 = false
