// Package timeline measures how a volume moves from node to node. A [Recorder] notes when each change of the objects of a volume
// reached a watch; a [Move] orders these times and the driver's record of its calls into the steps of one move, each with its owner and
// its length; [Chart] draws them.
//
// All times are of one machine's clock: the time of receipt for objects, the fabric's time for CSI calls. Nothing polls: a change is
// known when the API server sends it.
package timeline
