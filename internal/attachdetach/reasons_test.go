package attachdetach

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// TestWaitsHaveTheEventOfTheirRow: a pod gets an event for a reason exactly if the table of internal/explain has one for it, and the event has a
// cause. DetachingVolume is on the claim, when the detach begins.
func TestWaitsHaveTheEventOfTheirRow(t *testing.T) {
	for _, r := range attachment.Reasons() {
		wait := attachment.Wait{Node: "node-1", Reason: r, Wanted: true}
		g := explain.GuideTo(r)
		want := g.Event == explain.FailedAttachVolume || g.Event == explain.FailedDetachVolume
		if got := eventCause(wait, nil) != ""; got != want {
			t.Errorf("%s: a pod that waits gets an event: %v; the table has event %q, silence %q", r, got, g.Event, g.Silence)
		}
		if want && !strings.Contains(explain.Wait("disk.example", wait.Node, wait.Cause(), attachment.Yes), "node-1") {
			t.Errorf("%s: the event does not name the node: %s", r, explain.Wait("disk.example", wait.Node, wait.Cause(), attachment.Yes))
		}
	}
}
