package nodeagent

import (
	"os"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/conformance"
)

// TestUpstreamsNames checks that every case of upstream has a test that exists or a documented difference, and that what S7 rests on has a
// test.
func TestUpstreamsNames(t *testing.T) {
	document, err := conformance.Differences()
	must(t, err)
	table, err := conformance.Load("testdata/conformance.yaml")
	must(t, err)
	sources, required := new(conformance.Sources), requiredNames(t)
	for _, group := range table.Groups {
		if want := len(required[group.Name]); len(group.Rows) != want {
			t.Errorf("%s: %d cases, want %d", group.Name, len(group.Rows), want)
		}
		for _, wrong := range conformance.Judge(group.Rows, required[group.Name], document, sources.Has) {
			t.Errorf("%s: %s", group.Name, wrong)
		}
		delete(required, group.Name)
	}
	for name := range required {
		t.Errorf("%s: the table has no such group", name)
	}
}

// requiredNames are the cases that the table must have, by group.
func requiredNames(t *testing.T) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile("testdata/upstream-names.txt")
	must(t, err)
	names, from := map[string][]string{}, ""
	for line := range strings.Lines(string(raw)) {
		switch line = strings.TrimSpace(line); {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			from = strings.Trim(line, "[]")
		default:
			names[from] = append(names[from], line)
		}
	}
	return names
}

// TestUpstreamsNamesCatch shows that the table can fail.
func TestUpstreamsNamesCatch(t *testing.T) {
	wrong := conformance.Judge([]conformance.Row{
		{ID: "no such subtest", Tests: []string{"TestUninstallCSIDriver/nothing of this kind"}},
		{ID: "no such test", Tests: []string{"TestNothing/at all"}},
		{ID: "neither"},
		{ID: "undocumented", Differs: []string{"Nothing of this kind"}},
		{ID: "waived", Differs: []string{"Kubelet publishes"}, Safety: true},
	}, []string{"neither", "left out"}, "\n| Kubelet publishes", new(conformance.Sources).Has)
	if len(wrong) != 6 {
		t.Errorf("found %q, want that each row is wrong, and that one is missing", wrong)
	}
}
