package attachment

import (
	"cmp"
	"slices"
	"time"
)

// decideUnattached decides on a volume that has no VolumeAttachment. The node connects
// it by itself, but kubelet mounts only what is reported: the report is the attachment,
// and is given to one node at a time (S1) and taken back when the node no longer uses
// the volume (S2).
func (p *plan) decideUnattached() {
	for _, name := range p.nodeNames() {
		if _, ok := p.wants[name]; !ok {
			p.releaseUnattached(name, p.seen.Nodes[name])
		}
	}
	wants := p.wantsByAge()
	holder := p.chooseHolder(wants)
	var given NodeName
	for _, w := range wants {
		if p.serveUnattached(w, holder, given) {
			given = w.Node
		}
	}
}

// releaseUnattached withdraws the report where nobody wants the volume any more.
func (p *plan) releaseUnattached(name NodeName, node Node) {
	hold := Hold{Node: name}
	switch {
	case node.Exists == Unknown:
		hold.Reason = NodeUnknown
	case node.Exists == No:
		// There is nothing to withdraw, and nowhere to note anything.
		if node.InUse == No || p.ignores(node) {
			return
		}
		hold.Reason = NodeGone
	case !node.Managed:
		if !node.Reported && node.InUse == No {
			return
		}
		hold.Reason = NodeNotManaged
	case node.Reported:
		p.retire(name, node)
		return
	case node.InUse == No:
		p.noteNode(name, node, time.Time{})
		return
	case p.ignores(node):
		return
	default:
		p.waitOnNode(name, node)
		return
	}
	p.do(hold)
}

// chooseHolder picks, of several nodes that an exclusive volume is reported on, the
// one that keeps it: where it is in use, else where it is wanted longest.
func (p *plan) chooseHolder(wants []Want) NodeName {
	reported := slices.DeleteFunc(slices.Clone(wants), func(w Want) bool { return !p.seen.Nodes[w.Node].Reported })
	if !p.exclusive || len(reported) == 0 {
		return ""
	}
	idle := func(w Want) int {
		if p.seen.Nodes[w.Node].InUse == Yes {
			return 0
		}
		return 1
	}
	return slices.MinFunc(reported, func(a, b Want) int { return cmp.Compare(idle(a), idle(b)) }).Node
}

// serveUnattached reports the volume on a node whose pods want it, and tells whether
// it is that node's turn.
func (p *plan) serveUnattached(w Want, holder, given NodeName) bool {
	node := p.seen.Nodes[w.Node]
	if reason := node.unfit(); reason != "" {
		p.do(Hold{Node: w.Node, Reason: reason, Wanted: true})
		return false
	}
	p.noteNode(w.Node, node, time.Time{})
	blockers := p.blockers(w.Node)
	switch {
	case node.Reported && (holder == "" || holder == w.Node):
		return false
	case node.Reported && node.InUse == No:
		p.do(WithdrawReport{Node: w.Node, NodeUID: node.Machine.NodeUID})
		p.do(refused(w.Node, blockers))
	case p.exclusive && len(blockers) > 0: // S1
		p.do(refused(w.Node, blockers))
	case p.exclusive && given != "":
		p.do(refused(w.Node, []Blocker{{Node: given, Kind: ByTurn}}))
	case p.exclusive && p.stopLateReports(w.Node):
		return true // decided on again with the answers
	default:
		again := !node.DetachRequested.IsZero() || node.Checked
		p.do(Report{Node: w.Node, NodeUID: node.Machine.NodeUID, Again: again})
		return true
	}
	return false
}

// stopLateReports gives a new version to each other node that a report may still be on
// its way to, and tells whether there is one. There is no VolumeAttachment that the
// node would look for, so a report that arrives late would make a second writer.
func (p *plan) stopLateReports(except NodeName) bool {
	found := false
	for _, name := range p.nodeNames() {
		node := p.seen.Nodes[name]
		if name == except || node.Exists != Yes || !node.WriteMayBeUnderway {
			continue
		}
		found = true
		p.do(WithdrawReport{Node: name, NodeUID: node.Machine.NodeUID, NewVersion: true})
	}
	return found
}

// unfit is why nothing can be attached to the node now, empty if something can.
func (n Node) unfit() Reason {
	switch {
	case n.Exists == Unknown:
		return NodeUnknown
	case n.Exists == No:
		return NodeGone
	case !n.Managed:
		return NodeNotManaged
	}
	return ""
}
