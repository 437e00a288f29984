//go:build belay_fault_s5

package publication

// faultS5 plants a fault against S5, which the simulation has to find: an unpublish that
// failed counts as done.
const faultS5 = true
