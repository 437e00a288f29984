package attachdetach

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestConformanceTable holds the table to what there is: every line of upstream's
// behaviour has a test that exists or a difference that is documented, and what S1 to
// S10 rest on has a test.
func TestConformanceTable(t *testing.T) {
	document, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := testSources{}
	table := slices.Concat(inputs, objects, attaching, detaching, surface, faults)
	for _, fault := range judge(table, string(document), sources.has) {
		t.Error(fault)
	}
	if len(sources) < 5 {
		t.Errorf("only %d packages were read", len(sources))
	}
}

// judge finds what is wrong with a table.
func judge(table []row, document string, exists func(name string) error) []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	for _, r := range table {
		if seen[r.id] {
			say("row %s stands there twice", r.id)
		}
		seen[r.id] = true
		switch {
		case len(r.tests) == 0 && len(r.differs) == 0:
			say("row %s has neither a test nor a difference", r.id)
		case len(r.tests) == 0 && r.safety:
			say("row %s touches S1 to S10 and has no test", r.id)
		}
		for _, name := range r.tests {
			if err := exists(name); err != nil {
				say("row %s: %v", r.id, err)
			}
		}
		for _, begin := range r.differs {
			if !strings.Contains(document, "\n| "+begin) {
				say("row %s: docs/differences.md has no line that begins %q", r.id, begin)
			}
		}
	}
	for _, id := range required() {
		if !seen[id] {
			say("row %s is missing", id)
		}
	}
	return wrong
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
	document, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	change := func(id string, f func(*row)) []row {
		table := slices.Clone(good)
		i := slices.IndexFunc(table, func(r row) bool { return r.id == id })
		f(&table[i])
		return table
	}
	for name, c := range map[string]struct {
		table []row
		want  string
	}{
		"as it is":                   {good, ""},
		"a row is left out":          {good[1:], "row 1 is missing"},
		"a row twice":                {append(slices.Clone(good), good[0]), "row 1 stands there twice"},
		"neither":                    {change("7", func(r *row) { r.tests = nil }), "row 7 has neither"},
		"a safety row is waived":     {change("24", func(r *row) { r.tests = nil }), "row 24 touches S1"},
		"no such test":               {change("7", func(r *row) { r.tests = tests("TestNothing") }), "no test TestNothing"},
		"no such scenario":           {change("7", func(r *row) { r.tests = lacks("nothing") }), "has no subtest"},
		"no such subtest elsewhere":  {change("7", func(r *row) { r.tests = tests("internal/attachment.TestDetach/nothing") }), "has no subtest"},
		"a subtest elsewhere":        {change("7", func(r *row) { r.tests = tests("internal/attachment.TestDeletedNode/nothing else") }), "has no subtest"},
		"no such package":            {change("7", func(r *row) { r.tests = tests("internal/nothing.TestX") }), "no tests in"},
		"no such difference":         {change("39", func(r *row) { r.differs = tests("Nothing of this kind") }), "has no line"},
		"a difference's second half": {change("39", func(r *row) { r.differs = tests("There is no such flag") }), "has no line"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := judge(c.table, string(document), testSources{}.has)
			if c.want == "" && len(wrong) > 0 || c.want != "" && !slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, c.want) }) {
				t.Errorf("said %q, want %q", wrong, c.want)
			}
		})
	}
}

// testSources are the tests of packages, by the packages' folders: for each test the
// names that may be those of its subtests.
type testSources map[string]map[string]map[string]bool

// has tells why a test is not there: "TestName/subtest" of this package, or
// "path/of/package.TestName/subtest".
func (s testSources) has(name string) error {
	folder, test := ".", name
	if before, after, ok := strings.Cut(name, ".Test"); ok && strings.Contains(before, "/") {
		folder, test = filepath.Join("../..", before), "Test"+after
	}
	test, sub, nested := strings.Cut(test, "/")
	if s[folder] == nil {
		found, err := testsIn(folder)
		if err != nil {
			return err
		}
		s[folder] = found
	}
	subtests, ok := s[folder][test]
	switch {
	case !ok:
		return fmt.Errorf("there is no test %s in %s", test, folder)
	case nested && !subtests[sub] && (folder != "." || !scenarioNames(test)[sub]):
		return fmt.Errorf("%s in %s has no subtest %q", test, folder, sub)
	}
	return nil
}

// scenarioNames are the names of the scenarios that a test plays.
func scenarioNames(test string) map[string]bool {
	played := map[string][][]scenario{
		"TestUpstream":      {withForceCases(), restartCases(), withoutForceCases()},
		"TestUpstreamLacks": {lackingCases(), lackingWithoutForce(), lackingDeletedNode()},
	}
	names := map[string]bool{}
	for _, scenarios := range played[test] {
		for _, s := range scenarios {
			names[s.name] = true
		}
	}
	return names
}

// testsIn reads the tests of a folder.
func testsIn(folder string) (map[string]map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there are no tests in %s", folder)
	}
	found := map[string]map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				found[f.Name.Name] = subtestNames(f.Body)
			}
		}
	}
	return found, nil
}

// subtestNames are the strings that name subtests in a body: what Run is given, and
// the keys and "name" fields of tables.
func subtestNames(body *ast.BlockStmt) map[string]bool {
	names := map[string]bool{}
	add := func(e ast.Expr) {
		if literal, ok := e.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if name, err := strconv.Unquote(literal.Value); err == nil {
				names[name] = true
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Run" && len(n.Args) > 0 {
				add(n.Args[0])
			}
		case *ast.KeyValueExpr:
			if field, ok := n.Key.(*ast.Ident); ok && field.Name == "name" {
				add(n.Value)
			}
			add(n.Key)
		}
		return true
	})
	return names
}
