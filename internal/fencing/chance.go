package fencing

import "time"

// terminatingFor is how long after its grace period a pod of a node that works is gone: kubelet has killed its containers by then, and deletes it.
const terminatingFor = time.Minute

// Occupant is a pod that is bound to a silent node.
type Occupant struct {
	// Storage is set when it uses a volume whose data is not the node's own.
	Storage bool
	// Returns is as in Pod: such a pod moves nowhere. Who claims that of a pod of its own speaks for the volume of no other.
	Returns bool
	// Ended is set when its phase says that it does not run any more.
	Ended bool
	// Evicted is set when the taint manager has evicted it in this silence: its tolerations of a node that is not Ready have run out.
	Evicted bool
	// Expired is how long ago its grace period has ended, on the API server's clock; zero for a pod that is not being deleted. Grace is its length.
	Expired, Grace time.Duration
}

// GivesUp reports whether the pod shows that the cluster gives its node no chance any more: it has a volume and has not ended, and was evicted from the
// node, or is being deleted for so long that a kubelet that works would have ended it. The node was silent for that time too: one pod speaks for all, and its
// owner chooses what it tolerates. A pod that has ended waits for a finalizer, and says nothing about the node.
func (o Occupant) GivesUp(silent time.Duration) bool {
	return o.Keeps() && silent >= o.Grace+terminatingFor && (o.Evicted || o.Expired >= terminatingFor)
}

// Keeps reports whether the pod is a reason to fence its node: what it writes to may be wanted elsewhere, because the pod may run elsewhere.
func (o Occupant) Keeps() bool { return o.Storage && !o.Ended && !o.Returns }
