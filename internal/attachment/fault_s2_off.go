//go:build !belay_fault_s2

package attachment

// faultS2 is set in no program: see internal/simulation.
const faultS2 = false
