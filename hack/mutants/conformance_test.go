package mutants

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/conformance"
)

// row is a mutant of a row of a conformance table.
type row struct {
	mutant

	id, test string
}

// rows reads the mutants of a table.
func rows(t *testing.T, file string) (found []row, without []string) {
	t.Helper()
	table, err := conformance.Load(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range table.Rows() {
		if r.Safety && len(r.Mutants) == 0 {
			without = append(without, r.ID)
		}
		for _, m := range r.Mutants {
			if !slices.Contains(r.Tests, m.Test) {
				t.Errorf("row %s: the mutant's test %s is none of the row's", r.ID, m.Test)
			}
			one := row{mutant{m.File, m.Rule, m.Without, filepath.Dir(filepath.Dir(file))}, r.ID, m.Test}
			if pkg, test, ok := strings.Cut(m.Test, ".Test"); ok && strings.Contains(pkg, "/") {
				one.pkg, one.test = pkg, "Test"+test
			}
			if _, err := one.source(); err != nil {
				t.Errorf("row %s: %v", r.ID, err)
			}
			found = append(found, one)
		}
	}
	return found, without
}

// TestSafetyRowsHaveMutants: what each row rests on that is marked Safety is known, and is where the table says.
func TestSafetyRowsHaveMutants(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(conformance.Tables)) {
		if _, without := rows(t, conformance.Tables[name]); len(without) > 0 {
			t.Errorf("%d rows of Safety of the %s have no mutant: %s", len(without), name, strings.Join(without, ", "))
		}
	}
}

// TestConformance: the tests of each row fail without what it rests on.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: builds the tests once for each rule; `make mutants` does")
	}
	for _, name := range slices.Sorted(maps.Keys(conformance.Tables)) {
		t.Run(name, func(t *testing.T) {
			found, _ := rows(t, conformance.Tables[name])
			needed, built := map[string]map[string]bool{}, map[mutant][]row{}
			for _, r := range found {
				if needed[r.pkg] == nil {
					needed[r.pkg] = map[string]bool{}
				}
				needed[r.pkg][r.test] = true
				built[r.mutant] = append(built[r.mutant], r)
			}
			t.Run("0 without mutants", func(t *testing.T) {
				for _, pkg := range slices.Sorted(maps.Keys(needed)) {
					b := build(t, pkg)
					for _, test := range slices.Sorted(maps.Keys(needed[pkg])) {
						b.passes(t, test)
					}
				}
			})
			for _, rows := range built {
				var ids []string
				for _, r := range rows {
					ids = append(ids, r.id)
				}
				t.Run(strings.Join(slices.Compact(ids), ", "), func(t *testing.T) {
					t.Parallel()
					b := rows[0].build(t)
					for _, r := range rows {
						b.fails(t, r.test)
					}
				})
			}
		})
	}
}
