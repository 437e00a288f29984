//go:build !belay_fault_wall

package simulation

// faultWall is off: see timekeeper.
const faultWall = false
