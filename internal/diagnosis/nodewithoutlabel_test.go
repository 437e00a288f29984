package diagnosis

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/explain"
)

// TestNodeThatLacksItsLabel: a Node that was created again has the label of a driver only once the driver's pod has registered there. Its disk has the data: the
// node is not said to be gone, and no step deletes the claim.
func TestNodeThatLacksItsLabel(t *testing.T) {
	s := newScene()
	s.zone("topology.topolvm.io/node", "a")
	s.unscheduled("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
	e := explained(t, s, theWaiter)
	if e.Reason != explain.VolumeTopologyConflict || strings.Contains(e.Summary, "does not exist") {
		t.Errorf("%s: %s", e.Reason, e.Summary)
	}
	for _, step := range e.Findings[0].Next {
		if strings.Contains(step.Command, "delete pvc") {
			t.Errorf("a step for a node that exists: %+v", step)
		}
	}
}
