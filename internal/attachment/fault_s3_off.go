//go:build !belay_fault_s3

package attachment

// faultS3 is set in no program: see internal/simulation.
const faultS3 = false
