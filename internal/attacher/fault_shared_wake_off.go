//go:build !belay_fault_shared_wake

package attacher

const faultSharedWake = false
