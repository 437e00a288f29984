package fencing

import (
	"hash/fnv"
	"time"
)

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

// epochsApart is in how many classes processes number fences.
const epochsApart = 64

// OwnEpoch returns the next number, from one on, that is this process's: the create of a process that led before may be carried out late, after the fence of
// the next one was withdrawn, and must not have its number. Two of 64 processes may share theirs.
func OwnEpoch(next int64, process string) int64 {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(process)) // never fails (hash.Hash)
	return next + (int64(sum.Sum32()%epochsApart)-next%epochsApart+epochsApart)%epochsApart
}
