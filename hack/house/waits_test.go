package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// waits are the functions that look again because time has passed. A volume is
// moved by watches and replies; a time to look again comes from a decision
// (RecheckAt) or from a queue's back-off, and neither needs any of these.
var waits = map[string]*regexp.Regexp{
	"time":                              regexp.MustCompile(`^(Sleep|Tick|NewTicker)$`),
	"k8s.io/client-go/util/retry":       regexp.MustCompile(`^(OnError|RetryOnConflict)$`),
	"k8s.io/apimachinery/pkg/util/wait": regexp.MustCompile(`^(Poll|Until|JitterUntil|NonSlidingUntil|Forever|BackoffUntil|ExponentialBackoff)`),
}

// TestNothingOnTheWayOfAVolumePolls parses all that runs between a pod and its
// volume and fails on a call of a function that polls or sleeps.
func TestNothingOnTheWayOfAVolumePolls(t *testing.T) {
	files := 0
	for _, folder := range []string{"internal", "node", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			for _, position := range waitsIn(file) {
				t.Errorf("%s: polls or sleeps", fset.Position(position))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files == 0 {
		t.Fatal("no file was read: the test looks at nothing")
	}
}

// TestWaitsAreFound shows that the search sees a wait, renamed imports included.
func TestWaitsAreFound(t *testing.T) {
	source := `package p
import ("time"; w "k8s.io/apimachinery/pkg/util/wait"; "k8s.io/client-go/util/retry")
func f() { retry.RetryOnConflict(retry.DefaultRetry, nil); time.Sleep(1); time.NewTicker(1); w.PollUntilContextCancel(nil, 1, true, nil); time.Now(); time.NewTimer(1) }`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(waitsIn(file)); got != 4 {
		t.Errorf("found %d waits, want 4", got)
	}
}

func waitsIn(file *ast.File) []token.Pos {
	names := map[string]*regexp.Regexp{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil || waits[path] == nil {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = waits[path]
	}
	var found []token.Pos
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := selector.X.(*ast.Ident); ok && names[id.Name] != nil && names[id.Name].MatchString(selector.Sel.Name) {
			found = append(found, selector.Pos())
		}
		return true
	})
	return found
}
