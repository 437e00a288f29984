package attachdetach

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/conformance"
)

// TestConformanceTable checks that every behavior of upstream has a test that exists or a documented difference, and that what S1 to S10
// rest on has a test.
func TestConformanceTable(t *testing.T) {
	rows, document := conformanceTable(t)
	sources := played()
	for _, wrong := range conformance.Judge(rows, required(), document, sources.Has) {
		t.Error(wrong)
	}
	if sources.Packages() < 5 {
		t.Errorf("only %d packages were read", sources.Packages())
	}
}

func conformanceTable(t *testing.T) (rows []conformance.Row, document string) {
	t.Helper()
	table, err := conformance.Load("testdata/conformance.yaml")
	if err != nil {
		t.Fatal(err)
	}
	document, err = conformance.Differences()
	if err != nil {
		t.Fatal(err)
	}
	return table.Rows(), document
}

// required are the IDs of the rows that the table must have: what upstream 1.36.3 does, by number, the steps of its detach, and the faults
// that it still has.
func required() []string {
	ids := []string{"31b", "flags", "metrics", "events", "rbac"}
	for i := range 39 {
		ids = append(ids, strconv.Itoa(i+1))
	}
	for i := range 11 {
		ids = append(ids, fmt.Sprintf("detach %d", i+1))
	}
	for _, issue := range []int{
		65392, 68086, 142331, 139660, 136029, 117042, 124334, 77324, 141151, 81097, 122413, 28141, 64549,
		84169, 134175, 116886, 67853, 111327, 114219, 96142, 29262,
	} {
		ids = append(ids, fmt.Sprintf("k/k#%d", issue))
	}
	return append(ids, "external-attacher#215", "external-attacher#706",
		"one volume per minute", "healthy node not looked at", "caret in a handle", "node tombstone", "NotFound not recognised")
}

// TestConformanceTableCatches shows that the table can fail.
func TestConformanceTableCatches(t *testing.T) {
	good, document := conformanceTable(t)
	change := func(id string, f func(*conformance.Row)) []conformance.Row {
		table := slices.Clone(good)
		i := slices.IndexFunc(table, func(r conformance.Row) bool { return r.ID == id })
		f(&table[i])
		return table
	}
	for name, c := range map[string]struct {
		table []conformance.Row
		want  string
	}{
		"as it is":                   {good, ""},
		"a row is left out":          {good[1:], "row 1 is missing"},
		"a row twice":                {append(slices.Clone(good), good[0]), "row 1 is listed twice"},
		"neither":                    {change("7", func(r *conformance.Row) { r.Tests = nil }), "row 7 has neither"},
		"a safety row is waived":     {change("24", func(r *conformance.Row) { r.Tests = nil }), "row 24 touches S1"},
		"no such test":               {change("7", func(r *conformance.Row) { r.Tests = []string{"TestNothing"} }), "no test TestNothing"},
		"no such scenario":           {change("7", func(r *conformance.Row) { r.Tests = []string{"TestUpstreamLacks/nothing"} }), "has no subtest"},
		"no such subtest elsewhere":  {change("7", func(r *conformance.Row) { r.Tests = []string{"internal/attachment.TestDetach/nothing"} }), "has no subtest"},
		"a subtest elsewhere":        {change("7", func(r *conformance.Row) { r.Tests = []string{"internal/attachment.TestDeletedNode/nothing else"} }), "has no subtest"},
		"no such package":            {change("7", func(r *conformance.Row) { r.Tests = []string{"internal/nothing.TestX"} }), "no tests in"},
		"no such difference":         {change("39", func(r *conformance.Row) { r.Differs = []string{"Nothing of this kind"} }), "has no row"},
		"a difference's second half": {change("39", func(r *conformance.Row) { r.Differs = []string{"There is no such flag"} }), "has no row"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := conformance.Judge(c.table, required(), document, played().Has)
			if c.want == "" && len(wrong) > 0 || c.want != "" && !slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, c.want) }) {
				t.Errorf("found %q, want %q", wrong, c.want)
			}
		})
	}
}

// played returns the sources of tests with the scenarios that they run.
func played() *conformance.Sources {
	names := map[string][]string{}
	for test, scenarios := range map[string][][]scenario{
		"TestUpstream":      {withForceCases(), restartCases(), withoutForceCases()},
		"TestUpstreamLacks": {lackingCases(), lackingWithoutForce(), lackingDeletedNode()},
	} {
		for _, some := range scenarios {
			for _, s := range some {
				names[test] = append(names[test], s.name)
			}
		}
	}
	return &conformance.Sources{Played: names}
}
