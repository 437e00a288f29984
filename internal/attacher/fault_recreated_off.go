//go:build !belay_fault_recreated

package attacher

const faultRecreated = false
