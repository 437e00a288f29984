//go:build belay_fault_premount

package attachment

// faultPreMount plants a fault that the simulation has to find: what a recreated Node lists is a pre-mount
// entry wherever pods want the volume (S1, S2).
const faultPreMount = true
