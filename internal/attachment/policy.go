package attachment

import (
	"slices"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/planted"
)

// Policy defines when a volume is detached although it may be in use (S2). The zero value forces nothing.
type Policy struct {
	// OutOfService trusts the taint node.kubernetes.io/out-of-service on a node that is not Ready: the person who set it confirms
	// that the machine is shut down. Upstream trusts it on a Ready node too (ADR 18).
	OutOfService bool
	// FencesProve is set where recovery's actor runs in this process: the taint that a fence set then counts once the boot that the Node
	// shows is proven to have ended. The fence sets it before that, between two answers of the power switch (hole 1).
	FencesProve bool
	// UnmountTimeout is how long after the first request a detach is forced from a node that is not Ready. Zero, the default, never
	// forces; upstream has six minutes.
	UnmountTimeout time.Duration
	// DeletedNode is what happens to volumes in use on a node whose Node object is gone.
	DeletedNode DeletedNodePolicy
}

// DeletedNodePolicy is what happens to volumes in use on a node when its Node object is deleted.
type DeletedNodePolicy uint8

const (
	// DeletedNodeWait waits for UnmountTimeout, as upstream does; forever if that is zero.
	DeletedNodeWait DeletedNodePolicy = iota
	// DeletedNodeDetach takes the deletion as confirmation that the machine is gone, and detaches at once. A machine that still
	// writes is not noticed.
	DeletedNodeDetach
)

// String returns the value of the flag --deleted-node-policy.
func (p DeletedNodePolicy) String() string {
	if p == DeletedNodeDetach {
		return "detach"
	}
	return "wait"
}

// Authority is what permits a ForceDetach (S2). Only this package creates one.
type Authority interface {
	authority()
	// String is the name for logs, metrics and events.
	String() string
}

// OutOfServiceTaint is the policy by which a person, or recovery, confirms through the taint node.kubernetes.io/out-of-service that
// the machine is shut down.
type OutOfServiceTaint struct{}

// UnmountTimeout is the policy that stops waiting for a node that is not Ready.
type UnmountTimeout struct{}

// DeletedNode is the policy that takes the deletion of a Node object as confirmation that its machine is gone.
type DeletedNode struct{}

// StorageFenced is the proof by recovery that the driver cuts the boot off before it confirms the unpublish of this volume. It needs no
// policy.
type StorageFenced struct{}

// Fenced is the proof by recovery that the boot to which the volume was attached has ended. It needs no policy.
type Fenced struct{}

func (OutOfServiceTaint) authority() {}
func (UnmountTimeout) authority()    {}
func (DeletedNode) authority()       {}
func (Fenced) authority()            {}
func (StorageFenced) authority()     {}

// String returns upstream's name for it.
func (OutOfServiceTaint) String() string { return "out-of-service" }

// String returns upstream's name for it.
func (UnmountTimeout) String() string { return "timeout" }

// String returns the name for logs, metrics and events.
func (DeletedNode) String() string { return "deleted-node" }

// String returns the name for logs, metrics and events.
func (Fenced) String() string { return "fenced" }

// String returns the name for logs, metrics and events.
func (StorageFenced) String() string { return "storage-fenced" }

// authority returns what permits a detach from the node although it may use the volume.
func (p *plan) authority(a *Attachment, node Node, gone bool, requested time.Time) Authority {
	if proof := p.proof(a, node); proof != nil {
		return proof
	}
	if authority := p.policy.forces(p.now, node, gone, requested); !node.keeps(a, authority) {
		return authority
	}
	return nil
}

// keeps reports whether the volume stays although a policy forces its detach, because its boot is known to run. A timer and the deletion of
// a Node object are no evidence. The out-of-service taint is the statement of a person, and stays in force (ADR 25).
func (n Node) keeps(a *Attachment, forced Authority) bool {
	switch forced.(type) {
	case UnmountTimeout, DeletedNode:
		return n.runs(a)
	}
	return false
}

// runs reports whether the boot that may use the volume is known to run.
func (n Node) runs(a *Attachment) bool { return n.sign(a) != "" }

// sign is what shows that it runs; empty for nothing.
func (n Node) sign(a *Attachment) fencing.Sign {
	for _, life := range n.Lives {
		if life.Of(n.bootOf(a)) {
			return life.Sign()
		}
	}
	return ""
}

// proof returns what recovery has proven about the boot that may use the volume, nil for nothing. A driver that cuts at unpublish must be
// asked to: the object must not go before the driver confirmed it. A shared volume stays: to take it from one node gives it to no other.
func (p *plan) proof(a *Attachment, node Node) Authority {
	holds := slices.IndexFunc(node.Proofs, func(proof fencing.Proof) bool { return proof.Holds(node.bootOf(a), fencing.Volume(p.seen.Volume)) })
	switch {
	case holds < 0:
		return nil
	case node.Proofs[holds].Class() != fencing.StorageFenced:
		return Fenced{}
	case p.want.Shared != No || a.Implied || !a.Finalized:
		return nil
	}
	return StorageFenced{}
}

// bootOf is the boot that may use the volume: the one that the attachment recorded, else the one under the same Node object.
func (n Node) bootOf(a *Attachment) fencing.Boot {
	m := a.Machine
	if m == (Machine{}) && n.Exists == Yes && !a.Created.Before(n.Created) {
		m = n.Machine
	}
	return fencing.Boot{Node: string(a.Node), NodeUID: m.NodeUID, ID: m.BootID, Machine: fencing.MachineID(m.SystemUUID)}
}

// forces returns what permits a detach from the node although it may use the volume. gone: the attachment's machine has no Node
// object.
func (p Policy) forces(now time.Time, node Node, gone bool, requested time.Time) Authority {
	if p.OutOfService && !gone && node.Exists == Yes && node.OutOfService && node.Healthy == No && !p.unproven(node) {
		// A Ready node is alive: the taint was set too early, or on the wrong node.
		return OutOfServiceTaint{}
	}
	if p.DeletedNode == DeletedNodeDetach && gone {
		return DeletedNode{}
	}
	if planted.S2 && node.Healthy == No && node.Exists == Yes {
		return UnmountTimeout{}
	}
	if at := p.expiry(node, gone, requested); !at.IsZero() && !now.Before(at) {
		return UnmountTimeout{}
	}
	return nil
}

// unproven reports whether the node has the taint of a fence that has not proven yet that the boot has ended.
func (p Policy) unproven(node Node) bool {
	ended := slices.ContainsFunc(node.Proofs, func(proof fencing.Proof) bool {
		return proof.Class() != fencing.StorageFenced && proof.Boot().ID == node.Machine.BootID && proof.Boot().NodeUID == node.Machine.NodeUID
	})
	return p.FencesProve && node.TaintedByFence && !ended
}

// whenUnwanted is what will force a detach from a node once no pods want the volume there, as far as it is known now.
func (p Policy) whenUnwanted(reason Reason) Authority {
	switch {
	case reason == NodeUnknown:
	case reason == NodeGone && p.DeletedNode == DeletedNodeDetach:
		return DeletedNode{}
	case p.UnmountTimeout > 0:
		return UnmountTimeout{}
	}
	return nil
}

// expiry is when the unmount timeout ends; zero if it is not running: no detach waits, or the node is healthy, or its health is
// unknown.
func (p Policy) expiry(node Node, gone bool, requested time.Time) time.Time {
	if node.Exists == Unknown || !gone && node.Healthy != No {
		return time.Time{}
	}
	return p.overdue(requested)
}

// overdue is when the unmount timeout ends for a detach that waits, whatever the health of the node; zero if none waits or there is
// no timeout.
func (p Policy) overdue(requested time.Time) time.Time {
	if p.UnmountTimeout <= 0 || requested.IsZero() {
		return time.Time{}
	}
	return requested.Add(p.UnmountTimeout)
}
