//go:build belay_fault_s7

package nodevolume

// faultS7 plants a fault against S7, which the simulation has to find: a volume of which
// nobody knows whether a write that takes it out of the list may still land counts as listed.
const faultS7 = true
