//go:build belay_fault_s9

package attachment

// faultS9 plants a fault against S9, which the simulation has to find: an attachment is reported
// before the attacher confirmed it.
const faultS9 = true
