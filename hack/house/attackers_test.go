package house

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// attackTables are the tables of what attackers can do, each with the column of its tests.
var attackTables = map[string]int{"SECURITY.md": 2, "docs/invariants.md": 3}

// TestAttackersHaveTests: each row of these tables names a test of internal/rights, and each test that such a row names exists.
func TestAttackersHaveTests(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "internal/rights/*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, file := range files {
		names, err := symbols(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			tests[name] = true
		}
	}
	for page, column := range attackTables {
		rows, problems := attackRows(read(t, filepath.Join(root, page)), column, tests)
		if rows < 5 {
			t.Errorf("%s: %d rows of attackers", page, rows)
		}
		for _, problem := range problems {
			t.Errorf("%s: %s", page, problem)
		}
	}
}

var namedTest = regexp.MustCompile("`(Test[A-Za-z]+)`")

// attackRows counts the rows of the table whose first column is "attacker", and finds those whose column of tests names none, or one that there is not.
func attackRows(text string, column int, tests map[string]bool) (rows int, problems []string) {
	inside := false
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case strings.HasPrefix(line, "| attacker |"):
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && !strings.HasPrefix(line, "|-"):
			rows++
			if len(cells) <= column || !namedTest.MatchString(cells[column]) {
				problems = append(problems, "no test for "+strings.TrimSpace(cells[0]))
				continue
			}
			for _, name := range namedTest.FindAllStringSubmatch(cells[column], -1) {
				if !tests[name[1]] {
					problems = append(problems, "there is no "+name[1])
				}
			}
		}
	}
	return rows, problems
}

// TestAttackersWithoutTestsAreFound shows that the search can fail.
func TestAttackersWithoutTestsAreFound(t *testing.T) {
	const head = "| attacker | cannot | test |\n|---|---|---|\n"
	for text, want := range map[string][2]int{
		head + "| a | b | `TestA` |\n":                    {1, 0},
		head + "| a | b | `TestA`, `TestB` |\n":           {1, 1},
		head + "| a | b | TestA |\n| a | b |\n":           {2, 2},
		head + "| a | b | `TestA` |\n\n| c | d | e |\n":   {1, 0},
		"| cannot | attacker | test |\n| a | b | `T` |\n": {0, 0},
	} {
		rows, problems := attackRows(text, 2, map[string]bool{"TestA": true})
		if rows != want[0] || len(problems) != want[1] {
			t.Errorf("%q: %d rows, %q", text, rows, problems)
		}
	}
}
