package explain

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/fencing"
)

// TestFenceWaitsAreExplained: what it waits for, what happens by itself, and the way from the stored text back to the reason.
func TestFenceWaitsAreExplained(t *testing.T) {
	for _, r := range fencing.Exits.Reasons() {
		missing, _ := FenceWait(r)
		if missing == "" || FenceClock(r) == "" {
			t.Errorf("%s: missing %q, clock %q", r, missing, FenceClock(r))
		}
		if back := FenceWaitReason(missing); back != r && r != fencing.NotReadLive {
			t.Errorf("%s is stored as %q, which reads as %s", r, missing, back)
		}
		if text := FenceSummary(r, Situation{Node: "node-1", Detail: "Fencing"}); !strings.Contains(text, "node-1") || strings.Contains(text, "waits for ;") {
			t.Errorf("%s: %s", r, text)
		}
	}
	for _, r := range fencing.Reasons() {
		if fencing.Held(r) && !IsNotFenced(r) && fencing.Exits[r].By == "" {
			t.Errorf("%s keeps a node from being fenced, and has no text", r)
		}
		g := GuideTo(r)
		if g.Title == string(r) {
			t.Errorf("%s has no guide", r)
			continue
		}
		if text := g.Summary(Situation{Node: "node-1", Pod: "p"}); text == "" || strings.Contains(text, "%!") {
			t.Errorf("%s: %q", r, text)
		}
		for _, step := range g.Steps(Situation{Node: "node-1"}) {
			if strings.Contains(step.Text+step.Command, "NODE") || strings.Contains(step.Command, "out-of-service=") {
				t.Errorf("%s: %+v", r, step)
			}
		}
	}
	// Recovery never begins by itself here, and the cause is no brake.
	if steps := GuideTo(fencing.ControlPlaneNode).Steps(Situation{Node: "node-1"}); !strings.Contains(steps[0].Text, "bring it back") || strings.Contains(steps[0].Text, "common cause") {
		t.Errorf("a node of the control plane: %+v", steps)
	}
	if FenceWaitReason("a text of another version") != "" || FenceWaitReason("") != "" {
		t.Error("an unknown text has a reason")
	}
}

// TestEndAfterACommand: a fence that ended after its command says that the machine may be off, and that nothing starts it. One that commanded nothing does not.
func TestEndAfterACommand(t *testing.T) {
	sent := fencing.Fence{Intent: fencing.Intent{Nonce: "n"}, NodeDeleted: true}
	for text, want := range map[string]bool{
		FencePhase(fencing.Cancelled, "", true):                                              true,
		FencePhase(fencing.Cancelled, "", false):                                             false,
		FencePhase(fencing.Released, "", true):                                               false,
		FenceWithoutNode(fencing.Cancelled, "", sent):                                        true,
		FenceWithoutNode(fencing.Cancelled, "", fencing.Fence{}):                             false,
		RemediationEnded(fencing.Cancelled, true):                                            true,
		RemediationEnded(fencing.Cancelled, false):                                           false,
		FenceRequested(fencing.Cancelled, "a", "b", FencePhase(fencing.Cancelled, "", true)): true,
	} {
		if got := strings.Contains(text, "may be off") && strings.Contains(text, "start it"); got != want {
			t.Errorf("%t, want %t: %s", got, want, text)
		}
	}
}
