package conformance

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Row maps one line of upstream's behaviour, one of its test cases, or one of its
// faults, to what shows that belay does the same, or does otherwise on purpose.
type Row struct {
	// ID is the line's name in the list that the rows are of.
	ID string
	// Tests show it: "TestName/subtest" of the package that holds the table, or
	// "path/of/package.TestName".
	Tests []string
	// Differs begins the rows of docs/differences that document what is otherwise.
	Differs []string
	// Safety is set for what S1 to S10 rest on: a difference alone does not do.
	Safety bool
}

// Judge finds what is wrong with a table: a row that is missing, stands there twice,
// or has neither a test that exists nor a line of the document.
func Judge(table []Row, required []string, document string, exists func(name string) error) []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	for _, r := range table {
		if seen[r.ID] {
			say("row %s is listed twice", r.ID)
		}
		seen[r.ID] = true
		switch {
		case len(r.Tests) == 0 && len(r.Differs) == 0:
			say("row %s has neither a test nor a difference", r.ID)
		case len(r.Tests) == 0 && r.Safety:
			say("row %s touches S1 to S10 and has no test", r.ID)
		}
		for _, name := range r.Tests {
			if err := exists(name); err != nil {
				say("row %s: %v", r.ID, err)
			}
		}
		for _, begin := range r.Differs {
			if !strings.Contains(document, "\n| "+begin) {
				say("row %s: docs/differences has no row that begins %q", r.ID, begin)
			}
		}
	}
	for _, id := range required {
		if !seen[id] {
			say("row %s is missing", id)
		}
	}
	return wrong
}

// Sources are the tests of packages, as their source says. It is used by tests that run
// in a folder two below the module's.
type Sources struct {
	// Played are names of subtests of the table's own package that its source does not
	// show, by test.
	Played map[string][]string

	folders map[string]map[string]map[string]bool // folder, test, subtest
}

// Packages is how many packages were read.
func (s *Sources) Packages() int { return len(s.folders) }

// Has tells why a test is not there: "TestName/subtest" of this package, or
// "path/of/package.TestName/subtest".
func (s *Sources) Has(name string) error {
	folder, test := ".", name
	if before, after, ok := strings.Cut(name, ".Test"); ok && strings.Contains(before, "/") {
		folder, test = filepath.Join("../..", before), "Test"+after
	}
	test, sub, nested := strings.Cut(test, "/")
	if s.folders[folder] == nil {
		found, err := testsIn(folder)
		if err != nil {
			return err
		}
		if s.folders == nil {
			s.folders = map[string]map[string]map[string]bool{}
		}
		s.folders[folder] = found
	}
	subtests, ok := s.folders[folder][test]
	switch {
	case !ok:
		return fmt.Errorf("there is no test %s in %s", test, folder)
	case nested && !subtests[sub] && (folder != "." || !slices.Contains(s.Played[test], sub)):
		return fmt.Errorf("%s in %s has no subtest %q", test, folder, sub)
	}
	return nil
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
