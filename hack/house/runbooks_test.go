package house

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// TestEachReasonHasARow: each reason that a program decides is in the table of internal/explain, with the event that reports it or why there
// is none. Its section is checked in docs/runbooks.
func TestEachReasonHasARow(t *testing.T) {
	rows, events := explain.Guides(), documentedEvents(t)
	for _, r := range slices.Concat(attachment.Reasons(), publication.Reasons(), nodevolume.Reasons(), fencing.Reasons(), []decision.Reason{telemetry.CallInFlight}) {
		if !slices.Contains(rows, r) {
			t.Errorf("internal/explain has no row for %s", r)
		}
	}
	for _, r := range rows {
		switch g := explain.GuideTo(r); {
		case (g.Event == "") == (g.Silence == ""):
			t.Errorf("%s needs an event or why there is none: event %q, silence %q", r, g.Event, g.Silence)
		case g.Event != "" && !events[g.Event]:
			t.Errorf("%s: docs/events.md does not have the event %s", r, g.Event)
		}
		if err := follow(filepath.Join(root, "README.md"), explain.Runbook(r)); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
}

// documentedEvents are the reasons of events in docs/events.md: in its tables, and those of recovery in its lists.
func documentedEvents(t *testing.T) map[string]bool {
	t.Helper()
	page, _, _ := strings.Cut(read(t, filepath.Join(root, "docs", "events.md")), "\n## Conditions")
	found := map[string]bool{}
	for _, match := range regexp.MustCompile("`([A-Z][A-Za-z]+)`").FindAllStringSubmatch(page, -1) {
		found[match[1]] = true
	}
	return found
}

// TestReasonsOfFenceReadyAreDocumented: `kubectl belay evidence` shows the reason of the condition of a FenceSource, and docs/recovery/power-switches.md
// what it means. Where a person can do something about it, the command says what.
func TestReasonsOfFenceReadyAreDocumented(t *testing.T) {
	const file, shared = "internal/recovery/fencer.go", "internal/kube/fencesource.go"
	page, found := read(t, filepath.Join(root, "docs", "recovery", "power-switches.md")), 0
	constant := regexp.MustCompile(`(?m)^\t(?:reason|Source)\w+\s+= "(\w+)"$`)
	for _, match := range constant.FindAllStringSubmatch(read(t, filepath.Join(root, file))+read(t, filepath.Join(root, shared)), -1) {
		found++
		if !strings.Contains(page, "\n| `"+match[1]+"` |") {
			t.Errorf("docs/recovery/power-switches.md has no row for %s", match[1])
		}
		if other := explain.SourceNext("another reason", false, "n"); match[1] != "SaidOn" && slices.Equal(explain.SourceNext(match[1], false, "n"), other) {
			t.Errorf("%s has no step of its own", match[1])
		}
	}
	if found < 8 {
		t.Errorf("%s and %s have only %d reasons: the test looks at too little", file, shared, found)
	}
}
