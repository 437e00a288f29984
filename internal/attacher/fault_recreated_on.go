//go:build belay_fault_recreated

package attacher

// faultRecreated plants a fault against S1 and S5, which the simulation has to find: the
// PersistentVolume that an attachment names says which volume was published.
const faultRecreated = true
