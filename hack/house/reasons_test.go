package house

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// reasonsByPage are the values of the label reason, by the page of docs/metrics that explains them.
func reasonsByPage() map[string][]decision.Reason {
	return map[string][]decision.Reason{
		"controller.md": slices.DeleteFunc(attachment.Reasons(), func(r decision.Reason) bool { return r == attachment.Settled }),
		"attacher.md":   publication.Reasons(),
		"node.md":       append(nodevolume.Reasons(), telemetry.CallInFlight),
	}
}

// TestReasonsAreDocumented checks that the tables of docs/metrics explain each value of the label reason.
func TestReasonsAreDocumented(t *testing.T) {
	for page, reasons := range reasonsByPage() {
		text := read(t, filepath.Join(root, "docs", "metrics", page))
		for _, reason := range reasons {
			if !strings.Contains(text, "\n| `"+string(reason)+"` |") {
				t.Errorf("docs/metrics/%s does not explain reason %s", page, reason)
			}
		}
	}
}
