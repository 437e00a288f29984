//go:build belay_fault_recreated

package attacher

// faultRecreated plants a fault against S1 and S5, which the simulation has to find: the
// PersistentVolume of an attachment's name says
// which volume was published.
const faultRecreated = true
