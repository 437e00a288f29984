package fencing

import "time"

// EpochAhead is how far ahead of the time the epoch may be that a Node shows: clocks differ, and fences that begin within one second are numbered
// on. The node's kubelet can write any number there, because NodeRestriction protects labels and taints of a Node, and no annotations.
const EpochAhead = 24 * time.Hour

// NextEpoch returns the number of the next fence of a node, in seconds since 1970: higher than that of the NodeFence before, zero for none, and
// than the one that the Node shows, and no lower than the time, because both may have been deleted since.
func NextEpoch(now time.Time, recorded, shown int64) int64 {
	if shown > now.Add(EpochAhead).Unix() {
		shown = 0
	}
	return max(max(shown, recorded)+1, now.Unix())
}
