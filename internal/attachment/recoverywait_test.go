package attachment

import "testing"

// TestWaitsKnowOfRecovery: a wait for a node that is not Ready says what recovery does for it; about one that is Ready there is nothing to say.
func TestWaitsKnowOfRecovery(t *testing.T) {
	isolated := func(n *Node) { n.Isolated = true }
	for name, tc := range map[string]struct {
		policy Policy
		node   Node
		want   Recovery
	}{
		"none":                    {Policy{}, node("a", inUse, unhealthy), ""},
		"a fence is under way":    {Policy{}, node("a", inUse, unhealthy, isolated), FenceUnderWay},
		"recovery acts here":      {Policy{FencesProve: true}, node("a", inUse, unhealthy), FenceExpected},
		"and has begun":           {Policy{FencesProve: true}, node("a", inUse, unhealthy, isolated), FenceUnderWay},
		"the node is Ready":       {Policy{FencesProve: true}, node("a", inUse), ""},
		"the node is back, Ready": {Policy{}, node("a", inUse, isolated), ""},
	} {
		seen := Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": tc.node, "b": node("b")})}
		found := 0
		for _, want := range []Desired{wantAt("b"), {Shared: No}} { // a pod waits elsewhere; none does
			for _, step := range Decide(t0, want, seen, tc.policy).Steps {
				w, ok := step.(Wait)
				if !ok {
					continue
				}
				if w.Node == "a" {
					found++
					if w.Recovery != tc.want {
						t.Errorf("%s: the wait at the node has %q, want %q", name, w.Recovery, tc.want)
					}
				}
				for _, b := range w.Blockers {
					found++
					if b.Cause.Recovery != tc.want {
						t.Errorf("%s: the blocker has %q, want %q", name, b.Cause.Recovery, tc.want)
					}
				}
			}
		}
		if found < 2 {
			t.Errorf("%s: %d waits for the node", name, found)
		}
	}
}
