//go:build belay_fault_wall

package simulation

// faultWall plants a fault against S2: waits are counted by the clock of the machine.
const faultWall = true
