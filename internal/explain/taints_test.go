package explain

import (
	"strings"
	"testing"
)

// TestTaintsInOrder: whatever order the Node has them in, the out-of-service taint goes first, as recovery removes it.
func TestTaintsInOrder(t *testing.T) {
	steps := RemoveTaints("n", []string{"fencing.belay.dev/isolated", "node.kubernetes.io/out-of-service"})
	if len(steps) != 3 || !strings.Contains(steps[1].Command, "out-of-service-") || !strings.Contains(steps[2].Command, "isolated-") || !strings.Contains(steps[2].Text, "minute") {
		t.Errorf("%+v", steps)
	}
}
