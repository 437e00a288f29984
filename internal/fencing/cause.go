package fencing

// Cause is why a fence is cancelled.
type Cause string

// The causes.
const (
	CauseOutdated    Cause = "Outdated"         // another fence of the boot has its place
	CauseAlive       Cause = "SignOfLife"       // the node renewed its lease
	CauseRestarted   Cause = "Restarted"        // the machine runs another boot
	CauseOptedOut    Cause = "OptedOut"         // its owner wants the node left alone
	CauseMaintenance Cause = "UnderMaintenance" // so does who works on it
	CauseDeleted     Cause = "Deleted"          // a client deleted the NodeFence
	CauseUnasked     Cause = "Unasked"          // the remediation that asked does not any more
	CauseNothingLeft Cause = "NothingLeft"      // nothing of the machine is left in the cluster
)

// Causes lists all causes.
func Causes() []Cause {
	return []Cause{CauseOutdated, CauseAlive, CauseRestarted, CauseOptedOut, CauseMaintenance, CauseDeleted, CauseUnasked, CauseNothingLeft}
}

// Needless reports whether a fence that has commanded nothing is to end: the node lives, is left alone by its owner, a client deleted the fence, it
// is outdated, or nothing asks for it any more. Such a fence is cancelled, and none is begun. One that takes single volumes needs no author.
func Needless(f Fence, seen Observed) bool {
	return seen.outdates(f) || seen.alive(f) || seen.restarted(f) || seen.leavesAlone(f) || seen.Unasked && !f.StorageProven
}

// CancelledBy returns why a fence is cancelled that Decide has cancelled for what was observed.
func CancelledBy(f Fence, seen Observed) Cause {
	switch {
	case seen.outdates(f):
		return CauseOutdated
	case seen.alive(f):
		return CauseAlive
	case seen.restarted(f):
		return CauseRestarted
	case seen.OptedOut:
		return CauseOptedOut
	case seen.Maintenance:
		return CauseMaintenance
	case f.Deleting:
		return CauseDeleted
	case seen.Unasked && !f.offSent():
		return CauseUnasked
	}
	return CauseNothingLeft
}
