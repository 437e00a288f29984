package preflight

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"belay.dev/belay/docs"
	"belay.dev/belay/internal/testing/markdown"
)

// TestHintsLead: each page that the source names as a hint exists, and has the section, also where a constant names the page.
func TestHintsLead(t *testing.T) {
	files, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{} // by the name of the constant
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
				for i, value := range spec.Values {
					if page := text(value, nil); strings.HasPrefix(page, "docs/") {
						pages[spec.Names[i].Name] = page
					}
				}
			}
			return true
		})
	}
	hints := map[string]bool{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			expression, ok := n.(ast.Expr)
			hint := ""
			if ok {
				hint = text(expression, pages)
			}
			if strings.HasPrefix(hint, "docs/") && hint != "docs/" {
				hints[hint] = true
			}
			return hint == "" // the parts of a hint are none
		})
	}
	for _, hint := range slices.Sorted(maps.Keys(hints)) {
		if _, _, err := docs.Section(strings.TrimPrefix(pageCommand(hint), "kubectl belay runbook ")); err != nil {
			t.Errorf("hint %s: kubectl belay runbook does not print it: %v", hint, err)
		}
		page, section, _ := strings.Cut(hint, "#")
		content, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Errorf("hint %s: %v", hint, err)
		}
		if err == nil && section != "" && !slices.Contains(markdown.Anchors(string(content)), section) {
			t.Errorf("hint %s: the page has no such section", hint)
		}
	}
	for _, want := range []string{tickPage, profilesPage, recoveryPage + "#install"} {
		if !hints[want] {
			t.Errorf("the hint %s was not found: %d were", want, len(hints))
		}
	}
}

// parsed are the sources of the package without its tests.
func parsed() (files []*ast.File, err error) {
	names, err := filepath.Glob("*.go")
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, err
}

// text is the value of an expression of strings and constants; empty if it is another.
func text(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, _ := strconv.Unquote(e.Value)
		return value
	case *ast.Ident:
		return constants[e.Name]
	case *ast.BinaryExpr:
		if x, y := text(e.X, constants), text(e.Y, constants); e.Op == token.ADD && x != "" && y != "" {
			return x + y
		}
	}
	return ""
}
