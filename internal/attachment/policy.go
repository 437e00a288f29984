package attachment

import "time"

// Policy names the cases in which a volume is detached although it may be in use
// (S2). The zero value forces nothing.
type Policy struct {
	// OutOfService trusts the taint node.kubernetes.io/out-of-service: whoever set it
	// vouches that the machine is shut down. Upstream always does.
	OutOfService bool
	// UnmountTimeout is how long after the first request a detach is forced on a node
	// that is not healthy. Zero, the default, never forces; upstream has six minutes.
	UnmountTimeout time.Duration
	// DeletedNode says what becomes of volumes in use on a node whose object is gone.
	DeletedNode DeletedNodePolicy
}

// DeletedNodePolicy says what becomes of volumes that were in use on a node when its
// Node object went away.
type DeletedNodePolicy uint8

const (
	// DeletedNodeWait waits for UnmountTimeout, as upstream does, and for ever where
	// that is zero.
	DeletedNodeWait DeletedNodePolicy = iota
	// DeletedNodeDetach takes the deletion for a person's word that the machine is
	// gone, and detaches at once. A machine that goes on writing is not noticed.
	DeletedNodeDetach
)

// String returns the word that the flag --deleted-node-policy has for it.
func (p DeletedNodePolicy) String() string {
	if p == DeletedNodeDetach {
		return "detach"
	}
	return "wait"
}

// Authority is what allows a ForceDetach (S2). Only this package makes one.
type Authority interface {
	authority()
	// String is the name for logs, metrics and events.
	String() string
}

// OutOfServiceTaint is the policy by which a person, or recovery, vouches through
// the taint node.kubernetes.io/out-of-service that the machine is shut down.
type OutOfServiceTaint struct{}

// UnmountTimeout is the policy that gives up waiting for a node that is not healthy.
type UnmountTimeout struct{}

// DeletedNode is the policy that takes the deletion of a Node object for the word
// that its machine is gone.
type DeletedNode struct{}

func (OutOfServiceTaint) authority() {}
func (UnmountTimeout) authority()    {}
func (DeletedNode) authority()       {}

// String returns upstream's word for it.
func (OutOfServiceTaint) String() string { return "out-of-service" }

// String returns upstream's word for it.
func (UnmountTimeout) String() string { return "timeout" }

// String returns the word for logs, metrics and events.
func (DeletedNode) String() string { return "deleted-node" }

// MayWithdraw tells whether a node's report may be withdrawn: never what the newest
// known Node lists in use, unless a policy forces it. A restarting kubelet takes a
// volume that is not reported for one that needs no attach, and then leaves it out
// of its in-use list although it is still mounted. Where nothing is reported there
// is nothing to withdraw, and asking is always allowed. Requested is since when the
// detach waits, zero if it does not.
func (p Policy) MayWithdraw(now time.Time, node Node, requested time.Time) bool {
	return !node.Reported || node.InUse == No || p.forces(now, node, requested) != nil
}

// forces returns what allows a detach from the node although it may use the volume.
func (p Policy) forces(now time.Time, node Node, requested time.Time) Authority {
	if p.OutOfService && node.Exists == Yes && node.OutOfService {
		return OutOfServiceTaint{}
	}
	if p.DeletedNode == DeletedNodeDetach && node.Exists == No {
		return DeletedNode{}
	}
	if faultS2 && node.Healthy == No && node.Exists == Yes {
		return UnmountTimeout{}
	}
	if at := p.expiry(node, requested); !at.IsZero() && !now.Before(at) {
		return UnmountTimeout{}
	}
	return nil
}

// expiry is when the unmount timeout runs out, zero if it does not run: nobody asked
// yet, or the node is healthy, or nobody knows whether it is.
func (p Policy) expiry(node Node, requested time.Time) time.Time {
	if p.UnmountTimeout <= 0 || requested.IsZero() || node.Exists == Unknown || node.Healthy != No {
		return time.Time{}
	}
	return requested.Add(p.UnmountTimeout)
}

// givesUp tells, of a node that holds no attachment of the volume and reports none,
// that what it lists in use no longer counts: its word is what the policies overrule,
// and the request that they were counted from went with the attachment.
func (p Policy) givesUp(now time.Time, node Node) bool {
	if node.Reported {
		return false
	}
	return node.Exists == No || p.UnmountTimeout > 0 && node.Healthy == No || p.forces(now, node, time.Time{}) != nil
}
