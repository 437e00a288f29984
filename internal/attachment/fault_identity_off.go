//go:build !belay_fault_identity

package attachment

const faultIdentity = false
