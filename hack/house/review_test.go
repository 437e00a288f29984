package house

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeIsFinished: a figure that is still to be written is none.
func TestReadmeIsFinished(t *testing.T) {
	if n := strings.Count(read(t, filepath.Join(root, "README.md")), "TODO"); n > 0 {
		t.Errorf("README.md has %d TODO where figures belong", n)
	}
}

// TestBothSidesHaveASource: "1524 MiB, not 4370" states two figures, and the second is upstream's.
func TestBothSidesHaveASource(t *testing.T) {
	open := func(string) (string, error) { return "| belay | 1524 MiB |\n", nil }
	figures := []figure{{"1524 MiB", "f", `belay \| ([\d.]+) MiB`}}
	if got := figureProblems("it takes 1524 MiB, not 4370 (100,000 volumes, median of 20)", figures, open); len(got) == 0 {
		t.Error("nothing asks for the source of upstream's 4370")
	}
}
