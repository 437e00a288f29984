//go:build !belay_fault_wake

package attachdetach

const faultWake = false
