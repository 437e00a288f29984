package fencing

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"belay.dev/belay/internal/decision"
)

// TestReasonsAreListed: each constant of type decision.Reason in this package is in Reasons, so that a page is demanded for it.
func TestReasonsAreListed(t *testing.T) {
	found := 0
	for _, file := range []string{"reasons.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			kind, _ := spec.Type.(*ast.SelectorExpr)
			value, isText := spec.Values[0].(*ast.BasicLit)
			if kind == nil || kind.Sel.Name != "Reason" || !isText {
				return true
			}
			text, err := strconv.Unquote(value.Value)
			if found++; err != nil || !slices.Contains(Reasons(), decision.Reason(text)) {
				t.Errorf("Reasons does not list %s", spec.Names[0].Name)
			}
			return true
		})
	}
	if found != len(Reasons()) {
		t.Errorf("%d reasons are declared, and %d listed", found, len(Reasons()))
	}
}
