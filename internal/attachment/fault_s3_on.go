//go:build belay_fault_s3

package attachment

// faultS3 plants a fault against S3, which the simulation has to find: what is not in use
// is deleted without withdrawing it first.
const faultS3 = true
