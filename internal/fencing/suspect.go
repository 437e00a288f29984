package fencing

import (
	"time"

	"belay.dev/belay/internal/decision"
)

// LiveFor is how long an answer of the API server counts as live: a node that is suspected, and one that is about to be switched off, has
// been read no longer ago.
const LiveFor = time.Second

// Node is what the detector knows about one node.
type Node struct {
	Boot Boot
	// Zone is what the fencer recorded of this Node object, or empty: a kubelet may change the label of its own.
	Zone string
	// Silent is how long its lease has not been renewed, and Limit for how long that is no reason to suspect it; see Silences. Heard is
	// false for a node of which no lease was seen.
	Silent, Limit time.Duration
	Heard         bool
	// Ready is its condition Ready, Unknown without one.
	Ready Knowledge
	// PowerOff is the answer of the node's power switch, if it was asked since the silence began.
	PowerOff Knowledge
	// Endpoint is whether the kubelet's port answers a request: Yes is a sign of life, No is silence; see the function Endpoint. Unknown if it was not
	// asked.
	Endpoint Knowledge
	// Key is the public key of the kubelet's certificate, as it was seen while the boot lived; empty if unknown.
	Key string
	// Refused is set when the machine refused the connection: its network works.
	Refused bool
	// Deleted is set when there is no Node object, and VolumeAttachments of the boot are left.
	Deleted bool
	// OptedOut, Maintenance and ControlPlane keep the node from being fenced. ControlPlane is also set for the detector's own node.
	OptedOut, Maintenance, ControlPlane bool
	// ReadAt is when Node and lease were last read from the API server itself, on the detector's clock, and Renewal what the lease said.
	ReadAt  time.Time
	Renewal string
}

// quiet reports whether the node may be about to be suspected. Half of the limit: nodes that fail together go silent up to a renewal
// apart, and the brakes must see them together. A deleted Node counts for the others that are deleted: what deletes many at once is a fault too.
func (n Node) quiet() bool { return n.Deleted || n.Heard && n.Silent >= n.Limit/2 }

// Brakes keep a fault of the network, of the control plane or of the detector from fencing a healthy fleet.
type Brakes struct {
	// Share of all nodes, and of the nodes of a zone, that may be silent at a time. One always may. Nodes that are never fenced do not count.
	Share, ZoneShare float64
	// Window is how long a fence counts against Fences: the most nodes that may be fenced in it, and the most often that one of them may be.
	Window time.Duration
	Fences int
	// InFlight is the most fences at a time that Fence.InFlight reports.
	InFlight int
}

// DefaultBrakes returns the brakes that apply without configuration.
func DefaultBrakes() Brakes {
	return Brakes{Share: 0.4, ZoneShare: 0.5, Window: 10 * time.Minute, Fences: 5, InFlight: 2}
}

// Fleet is what the detector knows about all nodes.
type Fleet struct {
	Nodes []Node
	// Began has each fence of the window, whatever became of it, and InFlight is how many are under way.
	Began    []Start
	InFlight int
	// Fenced has the names of the nodes that have a NodeFence. They count as silent, unless they are in Back: those that are being released.
	Fenced, Back map[string]bool
}

// Start is when the fence of a node was created.
type Start struct {
	Node string
	At   time.Time
	// Deleted is set if it began because the Node was deleted: its machine is asked, and never switched off.
	Deleted bool
}

// counts reports whether what is known about the node is a reason to hold back the fence of another. A Node that is deleted, or never was, holds back no
// fence of one that is there: all that is known of it is what VolumeAttachments say, and who can create those may name any node.
func (n Node) counts(beside Node) bool { return beside.Deleted || !n.Deleted }

// count counts the nodes, of a zone or of all, that may be fenced, and which of them are silent. The others count in neither: a kubelet writes the
// annotations and the conditions of its own Node (kubernetes v1.36.3 plugin/pkg/admission/noderestriction/admission.go:545-561 refuses it taints,
// owners and some labels), and what it writes there holds back the fence of no other node.
func (f *Fleet) count(beside Node, which func(Node) bool) (all, silent int) {
	for _, n := range f.Nodes {
		if n.spared() != Settled || !n.counts(beside) || !which(n) {
			continue
		}
		all++
		if n.quiet() || f.Fenced[n.Boot.Node] && !f.Back[n.Boot.Node] {
			silent++
		}
	}
	return all, silent
}

// leases counts all nodes, and which of them are silent and heard by their leases, whatever else is known about them.
func (f *Fleet) leases(beside Node) (all, silent, heard int) {
	for _, n := range f.Nodes {
		if !n.counts(beside) {
			continue
		}
		all++
		switch {
		case n.quiet():
			silent++
		case n.Heard:
			heard++
		}
	}
	return all, silent, heard
}

// Suspicion is whether a node is to be fenced, and why not.
type Suspicion struct {
	Suspected bool
	// Reason is why not; Settled if suspected.
	Reason decision.Reason
	// After is how long until the answer may change without an event; zero if it will not.
	After time.Duration
}

// Suspect decides whether a node is lost, on two signals, and whether the brakes allow to fence it.
func Suspect(now time.Time, p Profile, b Brakes, fleet Fleet, n Node) Suspicion {
	if s := n.suspicious(p); !s.Suspected {
		return s
	}
	if reason := b.hold(now, fleet, n); reason != Settled {
		return Suspicion{Reason: reason, After: MaxTickGap}
	}
	if n.ReadAt.IsZero() || now.Sub(n.ReadAt) > LiveFor {
		return Suspicion{Reason: NotReadLive}
	}
	return Suspicion{Suspected: true, Reason: Settled}
}

// answers reports whether the machine shows a sign of life. A refusal has no key: another machine may have the address.
func (n Node) answers(p Profile) bool {
	return n.Endpoint == Yes || p.RefusedIsAlive && n.Refused && n.PowerOff != Yes
}

// suspicious decides on what is known about the node alone.
func (n Node) suspicious(p Profile) Suspicion {
	if n.Deleted && n.Boot.Complete() {
		return Suspicion{Suspected: true, Reason: Settled} // nothing is commanded for it (Fence.NodeDeleted)
	}
	switch {
	case n.Deleted:
		return Suspicion{Reason: NodeIdentityUnknown}
	case !n.Heard || n.Silent < n.Limit/2:
		return Suspicion{Reason: NodeAlive, After: max(n.Limit/2-n.Silent, 0)}
	case n.Silent < n.Limit:
		return Suspicion{Reason: SilenceTooShort, After: n.Limit - n.Silent}
	case n.spared() != Settled: // there is nothing to report about one that is alive
		return Suspicion{Reason: n.spared()}
	case !n.Boot.Complete():
		return Suspicion{Reason: NodeIdentityUnknown}
	case n.answers(p):
		return Suspicion{Reason: SignOfLife, After: MaxTickGap}
	case n.Ready != No && n.PowerOff != Yes && n.Endpoint != No:
		return Suspicion{Reason: NoSecondSignal, After: MaxTickGap}
	}
	return Suspicion{Suspected: true, Reason: Settled}
}

// spared is why a node is never fenced; Settled for other nodes.
func (n Node) spared() decision.Reason {
	switch {
	case n.OptedOut:
		return NodeOptedOut
	case n.Maintenance:
		return NodeUnderMaintenance
	case n.ControlPlane:
		return ControlPlaneNode
	}
	return Settled
}

// hold returns why a node is not fenced now although it is suspicious.
func (b Brakes) hold(now time.Time, fleet Fleet, n Node) decision.Reason {
	nodes, quiet, heard := fleet.leases(n)
	all, silent := fleet.count(n, func(Node) bool { return true })
	zone, zoneSilent := fleet.count(n, func(other Node) bool { return n.Zone != "" && other.Zone == n.Zone })
	switch {
	case heard == 0:
		return DetectorCutOff
	case silent > allowed(b.Share, all) || b.half(quiet, nodes):
		return TooManySilent
	case zoneSilent > allowed(b.ZoneShare, zone):
		return ZoneSilent
	case b.spent(now, fleet, n):
		return TooManyFenced
	case fleet.InFlight >= b.InFlight:
		return TooManyInFlight
	}
	return Settled
}

// spent reports whether as many other nodes were fenced lately as may be, or the node itself as often. A node whose fences begin and end one
// after the other takes one place of its fleet, and one for a deleted Node takes none of a Node that is there, as in Node.counts.
func (b Brakes) spent(now time.Time, fleet Fleet, n Node) bool {
	lately := map[string]int{}
	for _, s := range fleet.Began {
		if now.Sub(s.At) < b.Window && (n.Deleted || !s.Deleted) {
			lately[s.Node]++
		}
	}
	own := lately[n.Boot.Node]
	delete(lately, n.Boot.Node)
	return own >= b.Fences || len(lately) >= b.Fences
}

// half reports whether at least half of all nodes are silent, also those that are never fenced: then the fault is not that of some machines. An
// administrator may allow a greater share.
func (b Brakes) half(silent, of int) bool { return 2*silent >= of && silent > allowed(b.Share, of) }

// Held reports whether a node that has been silent for too long is not fenced for this reason.
func Held(r decision.Reason) bool {
	return r != Settled && r != NodeAlive && r != SilenceTooShort && r != NotReadLive
}

// allowed is how many of a number of nodes may be silent.
func allowed(share float64, of int) int { return max(1, int(share*float64(of))) }
