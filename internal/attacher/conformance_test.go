package attacher

import (
	"strconv"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/conformance"
)

// numberedCases is how many cases csi-attacher's TestCSIHandler has; their rows begin with their numbers.
const numberedCases = 61

// TestUpstreamsCases checks that every case of csi-attacher's tests, and what those do not cover, has a test.
func TestUpstreamsCases(t *testing.T) {
	document, err := conformance.Differences()
	if err != nil {
		t.Fatal(err)
	}
	table, err := conformance.Load("testdata/conformance.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rows := table.Rows()
	for i := range numberedCases {
		if i >= len(rows) || !strings.HasPrefix(rows[i].ID, strconv.Itoa(i+1)+" ") {
			t.Fatalf("case %d is missing", i+1)
		}
	}
	if others := len(rows) - numberedCases; others < 24 {
		t.Errorf("%d rows besides the numbered cases, want 24", others)
	}
	for _, wrong := range conformance.Judge(rows, nil, document, new(conformance.Sources).Has) {
		t.Error(wrong)
	}
}

// TestUpstreamsCasesCatch shows that the table can fail.
func TestUpstreamsCasesCatch(t *testing.T) {
	rows := []conformance.Row{{ID: "a", Tests: []string{"TestCSIHandlerRefused/nothing of this kind"}}}
	if wrong := conformance.Judge(rows, []string{"b"}, "", new(conformance.Sources).Has); len(wrong) != 2 {
		t.Errorf("found %q, want that the test of a is missing, and b", wrong)
	}
}
