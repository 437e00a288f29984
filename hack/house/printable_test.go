package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutputIsPrintable: programs write to their terminal through internal/printable. cmd/kubectl-belay hands its streams to the plugin, which
// asks them for the width of the terminal, and internal/manpage is linked for a release alone.
func TestOutputIsPrintable(t *testing.T) {
	files := 0
	for _, dir := range []string{"cmd", "internal", "node"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/internal/testing/") {
				return err
			}
			for _, except := range []string{"/internal/printable/", "/internal/manpage/", "/cmd/kubectl-belay/main.go"} {
				if strings.Contains(path, except) {
					return nil
				}
			}
			files++
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				selector, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				from, _ := selector.X.(*ast.Ident)
				switch name := selector.Sel.Name; {
				case from != nil && from.Name == "os" && (name == "Stdout" || name == "Stderr"),
					from != nil && from.Name == "fmt" && (name == "Print" || name == "Printf" || name == "Println"):
					t.Errorf("%s: %s.%s: write to a printable.Writer", set.Position(n.Pos()), from.Name, name)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 100 {
		t.Errorf("found only %d files", files)
	}
}
