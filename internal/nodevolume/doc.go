// Package nodevolume hides the life of one volume on one node: listed in use,
// attached, staged, published to pods, and all of it back again, through crashes
// of the agent, lost replies and reboots.
//
// Two things in it decide. [Decide] says what to do next for one volume, from
// what the pods want, what the records hold and what the Node says. [InUseList]
// says what may be believed about node.status.volumesInUse and what to write
// there. Both are pure: the caller brings observations and the time, and does
// what is said.
package nodevolume
