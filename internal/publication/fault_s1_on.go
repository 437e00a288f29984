//go:build belay_fault_s1_attacher

package publication

// faultS1 plants a fault against S1, which the simulation has to find: an attachment that nobody
// confirmed does not count (k/k#124334).
const faultS1 = true
