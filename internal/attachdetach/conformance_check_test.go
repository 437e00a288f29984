package attachdetach

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"belay.dev/belay/internal/conformance"
)

// TestConformanceTable holds the table to what there is: every line of upstream's
// behaviour has a test that exists or a difference that is documented, and what S1 to
// S10 rest on has a test.
func TestConformanceTable(t *testing.T) {
	document, err := conformance.Differences()
	if err != nil {
		t.Fatal(err)
	}
	sources := played()
	table := slices.Concat(inputs, objects, attaching, detaching, surface, faults)
	for _, fault := range conformance.Judge(table, required(), document, sources.Has) {
		t.Error(fault)
	}
	if sources.Packages() < 5 {
		t.Errorf("only %d packages were read", sources.Packages())
	}
}

// required are the lines of the list, and the faults that 1.36.3 still has.
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
	good := slices.Concat(inputs, objects, attaching, detaching, surface, faults)
	document, err := conformance.Differences()
	if err != nil {
		t.Fatal(err)
	}
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
		"no such test":               {change("7", func(r *conformance.Row) { r.Tests = tests("TestNothing") }), "no test TestNothing"},
		"no such scenario":           {change("7", func(r *conformance.Row) { r.Tests = lacks("nothing") }), "has no subtest"},
		"no such subtest elsewhere":  {change("7", func(r *conformance.Row) { r.Tests = tests("internal/attachment.TestDetach/nothing") }), "has no subtest"},
		"a subtest elsewhere":        {change("7", func(r *conformance.Row) { r.Tests = tests("internal/attachment.TestDeletedNode/nothing else") }), "has no subtest"},
		"no such package":            {change("7", func(r *conformance.Row) { r.Tests = tests("internal/nothing.TestX") }), "no tests in"},
		"no such difference":         {change("39", func(r *conformance.Row) { r.Differs = tests("Nothing of this kind") }), "has no row"},
		"a difference's second half": {change("39", func(r *conformance.Row) { r.Differs = tests("There is no such flag") }), "has no row"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := conformance.Judge(c.table, required(), document, played().Has)
			if c.want == "" && len(wrong) > 0 || c.want != "" && !slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, c.want) }) {
				t.Errorf("said %q, want %q", wrong, c.want)
			}
		})
	}
}

// played knows the tests, and the scenarios that they play.
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
