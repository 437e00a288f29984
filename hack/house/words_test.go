package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// TestReasonsAreSpelledOnce in the programs: what logs, metrics, events and tools call a
// reason is one constant.
func TestReasonsAreSpelledOnce(t *testing.T) {
	spelled := map[string][]string{}
	for _, reason := range attachment.Reasons() {
		spelled[string(reason)] = nil
	}
	for _, reason := range []string{
		explain.SuccessfulAttachVolume, explain.FailedAttachVolume,
		explain.DetachingVolume, explain.SuccessfulDetachVolume, explain.FailedDetachVolume,
	} {
		spelled[reason] = nil
	}
	for _, dir := range []string{"internal/attachment", "internal/attachdetach", "internal/explain", "internal/telemetry", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return literals(path, func(text, at string) {
				if _, ok := spelled[text]; ok {
					spelled[text] = append(spelled[text], at)
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for reason, places := range spelled {
		if len(places) != 1 {
			t.Errorf("%q is spelled %d times: %v", reason, len(places), places)
		}
	}
}

// literals visits the string literals of a file.
func literals(path string, visit func(text, at string)) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				visit(text, files.Position(lit.Pos()).String())
			}
		}
		return true
	})
	return nil
}
