//go:build belay_fault_shared_wake

package attacher

// faultSharedWake plants a fault that the simulation has to find: the end of a
// PersistentVolume wakes only what names it, not the others of the volume, which it
// had made exclusive.
const faultSharedWake = true
