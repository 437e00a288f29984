package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/lab/proc"
)

// TestTheLogOfANodeIsItsAgents: the log of the node's own process says nothing of volumes.
func TestTheLogOfANodeIsItsAgents(t *testing.T) {
	p := paths{cache: "/c", name: "lab"}
	got := logsOf(p, []proc.State{{Name: "etcd"}, {Name: "node-1"}}, []string{"node-1", "node-2"})
	want := map[string]string{"etcd": "/c/labs/lab/logs/etcd.log", "node-1": p.node("node-1") + "/log/agent.log"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
}
