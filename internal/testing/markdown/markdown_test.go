package markdown

import (
	"slices"
	"testing"
)

func TestAnchors(t *testing.T) {
	text := "# The kubelet's status tick\n#hashtag\ntext # no\n\n```\n# a comment\n```\n1. step\n\n   ```\n   # another\n   ```\n\n## What `belay-lab_2` does: 1.5 s\n## Größe\n| <a id=\"a-row\"></a>A row |\n"
	want := []string{"the-kubelets-status-tick", "what-belay-lab_2-does-15-s", "größe", "a-row"}
	if got := Anchors(text); !slices.Equal(got, want) {
		t.Errorf("anchors = %q, want %q", got, want)
	}
}
