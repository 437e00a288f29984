//go:build belay_fault_identity

package attachment

// faultIdentity plants a fault that the simulation has to find: a missing bootID or systemUUID counts as
// another one, so that a volume in use is let go (S2).
const faultIdentity = true
