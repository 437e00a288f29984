package field

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// quoted matches the name of a situation in a table.
	quoted = regexp.MustCompile("`([a-z0-9-]+)`")
	// linked matches a reason that links its runbook.
	linked = regexp.MustCompile(`\[([A-Z][A-Za-z]+)\]\([^)]*runbooks/`)
)

// TestComparedPage: docs/compared.md has each situation once, and the reason that it gives is that of the stored answer.
func TestComparedPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/compared.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Situations")
	table, _, _ = strings.Cut(table, "\n## ")
	var seen []string
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		names := quoted.FindAllStringSubmatch(cells[0], -1)
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 5 {
			t.Errorf("%q has %d cells", line, len(cells))
		}
		for _, name := range names {
			seen = append(seen, name[1])
			checkCompared(t, name[1], cells[len(cells)-1])
		}
	}
	slices.Sort(seen)
	if all := slices.Sorted(slices.Values(Names())); !slices.Equal(seen, all) {
		t.Errorf("the page has %v, and there are %v", seen, all)
	}
}

func checkCompared(t *testing.T, name, cell string) {
	t.Helper()
	answer, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Error(err)
		return
	}
	reason := linked.FindStringSubmatch(cell)
	switch {
	case reason != nil && !strings.Contains(string(answer), "("+reason[1]+")"):
		t.Errorf("%s: the stored answer is not %s", name, reason[1])
	case reason == nil && (!strings.HasPrefix(strings.TrimSpace(cell), "CLEAR") || !strings.Contains(string(answer), "\nCLEAR: ")):
		t.Errorf("%s: %q names no reason, and the stored answer is not CLEAR", name, cell)
	}
}
