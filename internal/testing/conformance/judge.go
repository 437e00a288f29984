package conformance

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Judge returns what is wrong with rows: one that is missing or listed twice, or that has neither a test that exists nor a row of the
// document.
func Judge(rows []Row, required []string, document string, exists func(name string) error) []string {
	var wrong []string
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.ID] {
			report("row %s is listed twice", r.ID)
		}
		seen[r.ID] = true
		switch {
		case len(r.Tests) == 0 && len(r.Differs) == 0:
			report("row %s has neither a test nor a difference", r.ID)
		case len(r.Tests) == 0 && r.Safety:
			report("row %s touches S1 to S10 and has no test", r.ID)
		}
		for _, name := range r.Tests {
			if err := exists(name); err != nil {
				report("row %s: %v", r.ID, err)
			}
		}
		for _, begin := range r.Differs {
			if !strings.Contains(document, "\n| "+begin) {
				report("row %s: docs/differences has no row that begins %q", r.ID, begin)
			}
		}
	}
	for _, id := range required {
		if !seen[id] {
			report("row %s is missing", id)
		}
	}
	return wrong
}

// Sources finds the tests of packages in their source. It is for tests that run in a folder two below the module's.
type Sources struct {
	// Played are subtests of the table's own package that its source does not name, by test.
	Played map[string][]string
	// Home is the folder of the table's package; empty for the current one.
	Home string

	folders map[string]map[string]test // folder, test
}

// test is a test function: its file, and the names of its subtests.
type test struct {
	file     string
	subtests map[string]bool
}

// Packages returns how many packages were read.
func (s *Sources) Packages() int { return len(s.folders) }

// Has returns an error unless a test exists: "TestName/subtest" of the table's package, or "path/of/package.TestName/subtest".
func (s *Sources) Has(name string) error {
	_, err := s.File(name)
	return err
}

// File returns the file of a test.
func (s *Sources) File(name string) (string, error) {
	home := cmp.Or(s.Home, ".")
	folder, function := home, name
	if before, after, ok := strings.Cut(name, ".Test"); ok && strings.Contains(before, "/") {
		folder, function = filepath.Join(moduleRoot(), before), "Test"+after
	}
	function, sub, nested := strings.Cut(function, "/")
	if s.folders[folder] == nil {
		found, err := testsIn(folder)
		if err != nil {
			return "", err
		}
		if s.folders == nil {
			s.folders = map[string]map[string]test{}
		}
		s.folders[folder] = found
	}
	found, ok := s.folders[folder][function]
	switch {
	case !ok:
		return "", fmt.Errorf("there is no test %s in %s", function, folder)
	case nested && !found.subtests[sub] && (folder != home || !slices.Contains(s.Played[function], sub)):
		return "", fmt.Errorf("%s in %s has no subtest %q", function, folder, sub)
	}
	return found.file, nil
}

// testsIn reads the tests of a folder.
func testsIn(folder string) (map[string]test, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there are no tests in %s", folder)
	}
	found := map[string]test{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				found[f.Name.Name] = test{file, subtestNames(f.Body)}
			}
		}
	}
	return found, nil
}

// subtestNames returns the strings that may name subtests: arguments of Run, and the keys and "name" fields of tables.
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
