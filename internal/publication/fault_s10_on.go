//go:build belay_fault_s10

package publication

// faultS10 plants a fault against S10, which the simulation has to find: the driver is called
// before the finalizers are stored.
const faultS10 = true
