package nodeagent

import (
	"os"
	"strings"
	"testing"

	"belay.dev/belay/internal/nodevolume"
)

// TestReasonsAreDocumented: docs/adopt-node.md explains for each reason in an event who has to act.
func TestReasonsAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/adopt-node.md")
	must(t, err)
	for _, reason := range append(nodevolume.Reasons(), "ClaimNotReady") {
		if !strings.Contains(string(document), "`"+string(reason)+"`") {
			t.Errorf("docs/adopt-node.md does not say what %s means", reason)
		}
	}
}
