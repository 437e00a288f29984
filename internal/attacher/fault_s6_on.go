//go:build belay_fault_s6_attacher

package attacher

// faultS6 plants a fault against S6, which the simulation has to find: finalizers are stored
// on whatever object has the name by now.
const faultS6 = true
