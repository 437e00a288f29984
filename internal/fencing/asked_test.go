package fencing

import (
	"testing"

	"belay.dev/belay/internal/decision"
)

// TestAskedNode: a remediation ends the chance of a node that is not Ready, and has one fenced that has nothing to lose. It makes no other rule weaker: not that
// for a node that is Ready, nor that for one that renews its lease, whose own kubelet answers, or whose owner wants it left alone. While another component
// has the node's lease nothing begins, asked or not.
func TestAskedNode(t *testing.T) {
	for name, test := range map[string]struct {
		change      func(*Node)
		alone, asks decision.Reason
	}{
		"silent":                   {func(*Node) {}, Settled, Settled},
		"refuses":                  {func(n *Node) { n.Refused = true }, SignOfLife, Settled},
		"answers without its key":  {func(n *Node) { n.Endpoint = Yes }, SignOfLife, Settled},
		"answers with its key":     {func(n *Node) { n.Endpoint, n.Own = Yes, true }, SignOfLife, SignOfLife},
		"has nothing to lose":      {func(n *Node) { n.Idle = Yes }, NothingToLose, Settled},
		"refuses, Ready":           {func(n *Node) { n.Refused, n.Ready = true, Yes }, SignOfLife, SignOfLife},
		"nothing to lose, refuses": {func(n *Node) { n.Idle, n.Refused = Yes, true }, NothingToLose, Settled},
		"nothing to lose, own key": {func(n *Node) { n.Idle, n.Endpoint, n.Own = Yes, Yes, true }, NothingToLose, SignOfLife},
		"nothing to lose, Ready":   {func(n *Node) { n.Idle, n.Ready = Yes, Yes }, NothingToLose, NothingToLose},
		"Ready":                    {func(n *Node) { n.Ready = Yes }, NoSecondSignal, NoSecondSignal},
		"renews":                   {func(n *Node) { n.Silent = 0 }, NodeAlive, NodeAlive},
		"opted out":                {func(n *Node) { n.OptedOut = true }, NodeOptedOut, NodeOptedOut},
		"of the control plane":     {func(n *Node) { n.ControlPlane = true }, ControlPlaneNode, ControlPlaneNode},
		"leased by another":        {func(n *Node) { n.Leased = true }, NodeLeaseHeld, NodeLeaseHeld},
		"leased, nothing to lose":  {func(n *Node) { n.Leased, n.Idle = true, Yes }, NothingToLose, NodeLeaseHeld},
		"leased, with its own key": {func(n *Node) { n.Leased, n.Endpoint, n.Own = true, Yes, true }, SignOfLife, SignOfLife},
	} {
		for asked, want := range map[bool]decision.Reason{false: test.alone, true: test.asks} {
			f := fleet(1, 5, noZone)
			test.change(&f.Nodes[0])
			f.Nodes[0].Asked = asked
			if got := Suspect(start, Default, DefaultBrakes(), f.Count(), f.Nodes[0]); got.Reason != want {
				t.Errorf("%s, asked %v: %s, want %s", name, asked, got.Reason, want)
			}
		}
	}
	f := fleet(2, 4, noZone)
	f.Nodes[0].Asked = true
	if got := Suspect(start, Default, DefaultBrakes(), f.Count(), f.Nodes[0]); got.Reason != TooManySilent {
		t.Errorf("two of four are silent, and one is asked for: %s", got.Reason)
	}
}
