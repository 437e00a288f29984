package diagnosis

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/explain"
)

// TestDriverThatIsFull: of a pod with volumes of several drivers, the driver is named whose limit is reached, and whose slots orphans take.
func TestDriverThatIsFull(t *testing.T) {
	s := newScene()
	s.withShared()
	s.full(map[string]int32{"a": 1})
	if e := explained(t, s, theWaiter); e.Reason != explain.AttachLimitReached || !strings.Contains(e.Summary, "limit of CSI driver "+oneDriver) {
		t.Errorf("%s: %s", e.Reason, e.Summary)
	}
	s.Snapshot.Pods = s.Pods[1:]
	if e := explained(t, s, theWaiter); e.Reason != explain.OrphansFillNode {
		t.Errorf("with an orphan: %s: %s", e.Reason, e.Summary)
	}
}
