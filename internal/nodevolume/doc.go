// Package nodevolume hides the lifecycle of one volume on one node: listed in use, attached, staged, published to pods, and back,
// across crashes of the agent, lost replies and reboots.
//
// Two parts decide. [Decide] returns the next step for one volume, from what the pods want, what the records hold and what the Node
// lists. [InUseList] keeps what is known about node.status.volumesInUse and what to write there. Both are pure: the caller supplies
// observations and the time, and carries out the steps.
package nodevolume
