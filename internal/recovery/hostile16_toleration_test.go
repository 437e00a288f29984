package recovery

import (
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/fixture"
)

// A tenant tolerates a node that is not Ready for no second. Its pod is evicted as soon as the node says so, as while its container runtime is replaced, and
// with that the chance of the node ends for all others: the machine is switched off 25 s after the kubelet was stopped too.
func TestHostileTolerationOfOneTenantGivesNoNodeUp(t *testing.T) {
	n := fencing.Node{Boot: bootOf(nodeOf("n1", 0)), Silent: 26 * time.Second}
	p := partsOver(nil, evictedBefore(5*time.Second, new(int64(0))), fixture.Pod("default", "of-others", "n1", "their-data"))
	must(t, (&detector{parts: p}).occupants(t.Context(), &n, nodeOf("n1", 0)))
	if n.GivenUp {
		t.Error("a pod with tolerationSeconds: 0 gives up a node that is silent for 26 s")
	}
}
