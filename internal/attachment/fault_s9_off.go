//go:build !belay_fault_s9

package attachment

// faultS9 is set in no program: see internal/simulation.
const faultS9 = false
