// Package timeline measures the way of a volume from node to node. A [Recorder]
// notes, for every object that a volume's life touches, the moment at which each
// change reached a watch; a [Move] orders these moments and the driver's own record
// of its calls into the steps of one move, each with its owner and its length, and
// [Chart] draws them.
//
// All moments come from one machine's clock: the recorder's receive time for
// objects, the fabric's time for CSI calls. Nothing polls: a change is known when
// the API server sends it.
package timeline
