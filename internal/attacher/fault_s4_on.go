//go:build belay_fault_s4

package attacher

// faultS4 plants a fault against S4, which the simulation has to find: the ledger does not
// refuse a second call either.
const faultS4 = true
