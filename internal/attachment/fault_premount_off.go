//go:build !belay_fault_premount

package attachment

const faultPreMount = false
