//go:build belay_fault_s2

package attachment

// faultS2 plants a fault against S2, which the simulation has to find: a node that is not
// ready is given up without waiting for the unmount timeout.
const faultS2 = true
