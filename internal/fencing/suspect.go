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
	// Key is the public key of the kubelet's certificate, as it was seen while the boot lived; empty if unknown. Own is set when the answer came with it.
	Key string
	Own bool
	// Refused is set when the machine refused the connection: its network works. Leaving is set when its kubelet, or the owner of the machine, announced
	// that it stops. GivenUp is set when the cluster has given the node up, as its pods show (GivesUp). See Node.chance.
	Refused, Leaving, GivenUp bool
	// Idle is Yes if nothing of the node has a volume that another node could want. Unknown if its pods were not read.
	Idle Knowledge
	// Asked is set while a remediation asks for the fence of the node, which was not Ready for as long as its author waits. Leased is set while another
	// component, for which no remediation is made, holds the node's lease by which such components agree.
	Asked, Leased bool
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
	// Window is how long a command counts against Fences: the most nodes that may be switched off in it.
	Window time.Duration
	Fences int
	// InFlight is the most fences at a time that Fence.Active reports.
	InFlight int
}

// DefaultBrakes returns the brakes that apply without configuration.
func DefaultBrakes() Brakes {
	return Brakes{Share: 0.4, ZoneShare: 0.5, Window: 10 * time.Minute, Fences: 5, InFlight: 2}
}

// Fleet is what the detector knows about all nodes.
type Fleet struct {
	Nodes []Node
	// Commanded has the nodes to which a command to switch off was sent in the window, or perhaps was, or from which volumes may have been taken, and when;
	// InFlight is how many fences may do either (Fence.Active).
	Commanded map[string]time.Time
	InFlight  int
	// Fenced has the names of the nodes that have a NodeFence. They count as silent, unless they are in Back: those that are being released.
	Fenced, Back map[string]bool
}

// Counts is a fleet as the brakes see it, counted once for the decisions on all of its nodes. What a decision changes is counted with the next one.
type Counts struct {
	Fleet

	// there has the Nodes that are there, all those that are deleted too. A Node that is deleted, or never was, holds back no fence of one that is
	// there: all that is known of it is what VolumeAttachments say, and who can create those may name any node.
	there, all tally
}

// tally is how many nodes there are of each kind.
type tally struct {
	nodes, quiet, heard int // by their leases, whatever else is known about them
	may, silent         int // those that may be fenced, and of them those that are silent
	zones               map[string]share
}

type share struct{ may, silent int }

// Count counts the fleet.
func (f Fleet) Count() Counts {
	c := Counts{Fleet: f, there: tally{zones: map[string]share{}}, all: tally{zones: map[string]share{}}}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		silent := n.quiet() || f.Fenced[n.Boot.Node] && !f.Back[n.Boot.Node]
		c.all.add(n, silent)
		if !n.Deleted {
			c.there.add(n, silent)
		}
	}
	return c
}

// beside are the nodes that count for the fence of another.
func (c *Counts) beside(n Node) *tally {
	if n.Deleted {
		return &c.all
	}
	return &c.there
}

// add counts a node. One that is never fenced counts only by its lease: a kubelet writes the annotations and the conditions of its own Node
// (kubernetes v1.36.3 plugin/pkg/admission/noderestriction/admission.go:545-561 refuses it taints, owners and some labels), and what it writes there
// holds back the fence of no other node.
func (t *tally) add(n *Node, silent bool) {
	t.nodes++
	switch {
	case n.quiet():
		t.quiet++
	case n.Heard:
		t.heard++
	}
	if n.Spared() != Settled {
		return
	}
	zone := t.zones[n.Zone]
	zone.may++
	t.may++
	if silent {
		zone.silent++
		t.silent++
	}
	t.zones[n.Zone] = zone
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
func Suspect(now time.Time, p Profile, b Brakes, fleet Counts, n Node) Suspicion {
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

// alive reports whether the machine shows a sign of life. Its own kubelet that answers is one for as long as it answers, whatever its power switch says.
func (n Node) alive(p Profile) bool { return n.Endpoint == Yes && n.Own || n.chance(p) }

// chance reports whether something speaks for the node, and still counts: an answer that may be another machine's, because the key of its kubelet is not
// known; a refused connection, which is a kubelet that was stopped or an address that went to another machine; an announcement that the machine stops.
// It counts for as long as the cluster itself gives the node a chance, or for Profile.Chance, and until a remediation asks for the fence. After that, a node
// that is not Ready is silent as any other: its containers may run on, so its machine is switched off before a volume moves.
func (n Node) chance(p Profile) bool {
	speaks := n.Endpoint == Yes || n.Refused || n.Leaving
	spent := n.Ready == No && (n.Asked || n.GivenUp || p.Chance > 0 && n.Silent >= p.Chance)
	return speaks && n.PowerOff != Yes && !spent
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
	case n.Spared() != Settled: // there is nothing to report about one that is alive
		return Suspicion{Reason: n.Spared()}
	case !n.Boot.Complete():
		return Suspicion{Reason: NodeIdentityUnknown}
	case n.nothingToLose(): // before what ends by itself: no end of that has the node fenced
		return Suspicion{Reason: NothingToLose, After: MaxTickGap}
	case n.alive(p):
		return Suspicion{Reason: SignOfLife, After: MaxTickGap}
	case n.Leased:
		return Suspicion{Reason: NodeLeaseHeld, After: MaxTickGap}
	case n.Ready != No && n.PowerOff != Yes && n.Endpoint != No:
		return Suspicion{Reason: NoSecondSignal, After: MaxTickGap}
	}
	return Suspicion{Suspected: true, Reason: Settled}
}

// nothingToLose reports whether nothing waits for the machine to be switched off: no volume, and no remediation that asks for a node that is not Ready.
func (n Node) nothingToLose() bool { return n.Idle == Yes && (!n.Asked || n.Ready != No) }

// Spared is why a node is never fenced; Settled for other nodes.
func (n Node) Spared() decision.Reason {
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
func (b Brakes) hold(now time.Time, fleet Counts, n Node) decision.Reason {
	if reason := b.doubt(fleet, n); reason != Settled {
		return reason
	}
	switch {
	case b.spent(now, fleet, n):
		return TooManyFenced
	case fleet.InFlight >= b.InFlight:
		return TooManyInFlight
	}
	return Settled
}

// doubt returns why the silence of a node is in doubt: so much is silent that the fault may be another one than that of its machine.
func (b Brakes) doubt(fleet Counts, n Node) decision.Reason {
	t := fleet.beside(n)
	zone := t.zones[n.Zone]
	switch {
	case t.heard == 0:
		return DetectorCutOff
	case t.silent > allowed(b.Share, t.may) || b.half(t.quiet, t.nodes):
		return TooManySilent
	case n.Zone != "" && zone.silent > allowed(b.ZoneShare, zone.may):
		return ZoneSilent
	}
	return Settled
}

// spent reports whether as many other nodes were commanded lately as may be. What was not commanded counts for nothing, whatever a fence was begun
// for: a node that is silent for a moment again and again, or one that has no power switch, holds back no other.
func (b Brakes) spent(now time.Time, fleet Counts, n Node) bool {
	lately := 0
	for name, at := range fleet.Commanded {
		if name != n.Boot.Node && now.Sub(at) < b.Window {
			lately++
		}
	}
	return lately >= b.Fences
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
