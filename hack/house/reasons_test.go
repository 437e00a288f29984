package house

import (
	"path/filepath"
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/publication"
)

// TestReasonsAreDocumented checks that the tables of docs/metrics explain each value of the label reason.
func TestReasonsAreDocumented(t *testing.T) {
	for page, reasons := range map[string][]decision.Reason{
		"controller.md": attachment.Reasons(), "attacher.md": publication.Reasons(), "node.md": nodevolume.Reasons(),
	} {
		text := read(t, filepath.Join(root, "docs", "metrics", page))
		for _, reason := range reasons {
			if reason != attachment.Settled && !strings.Contains(text, "\n| `"+string(reason)+"` |") {
				t.Errorf("docs/metrics/%s does not explain reason %s", page, reason)
			}
		}
	}
}
