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

// TestLogKeysAreDocumented checks the programs' log calls: each literal key is in the table of docs/logs.md, which has no other, and each
// literal message begins with a capital letter and ends without a full stop.
func TestLogKeysAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(read(t, filepath.Join(root, "docs", "logs.md")), -1) {
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[key[1]] = false
		}
	}
	calls := 0
	for _, dir := range []string{"cmd", "internal", "node"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/internal/testing/") || strings.Contains(path, "/cmd/belay-lab/") {
				return err
			}
			calls += logCalls(t, path, documented)
			return literals(path, func(text, _ string) {
				if _, ok := documented[text]; ok {
					documented[text] = true
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if calls < 50 {
		t.Errorf("found only %d log calls", calls)
	}
	for key, used := range documented {
		if !used {
			t.Errorf("docs/logs.md: no program uses key %s", key)
		}
	}
}

// TestQuotedLogLinesExist: each log line that docs/operate.md quotes, which is code that begins with a capital letter and has several words, is
// a literal of a program.
func TestQuotedLogLinesExist(t *testing.T) {
	page := strings.Join(strings.Fields(fenced.ReplaceAllString(read(t, filepath.Join(root, "docs", "operate.md")), "")), " ")
	missing := map[string]bool{}
	for _, quoted := range regexp.MustCompile("`([A-Z][a-z]* [^`]+)`").FindAllStringSubmatch(page, -1) {
		missing[quoted[1]] = true
	}
	if len(missing) < 10 {
		t.Errorf("found only %d quoted log lines", len(missing))
	}
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return literals(path, func(text, _ string) { delete(missing, text) })
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for line := range missing {
		t.Errorf("docs/operate.md quotes %q, which no program logs", line)
	}
}

// logCalls checks the log calls of a file and returns how many there are.
func logCalls(t *testing.T, path string, documented map[string]bool) (found int) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	check := func(at ast.Node, keys []ast.Expr) {
		for i := 0; i < len(keys); i += 2 {
			if key, ok := literal(keys[i]); ok {
				if _, ok := documented[key]; !ok {
					t.Errorf("%s: docs/logs.md lacks key %q", files.Position(at.Pos()), key)
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit: // values := []any{"key", value}
			if list, ok := n.Type.(*ast.ArrayType); ok && len(n.Elts) > 1 && len(n.Elts)%2 == 0 {
				if elem, ok := list.Elt.(*ast.Ident); ok && elem.Name == "any" {
					check(n, n.Elts)
				}
			}
		case *ast.CallExpr:
			before, isLog := argumentsBeforeKeys(n)
			if len(n.Args) <= before {
				return true
			}
			if isLog && before > 0 {
				message, ok := literal(n.Args[before-1])
				if ok {
					found++
				}
				if ok && (message == "" || strings.ToUpper(message[:1]) != message[:1] || strings.HasSuffix(message, ".")) {
					t.Errorf("%s: message %q must be a sentence without a full stop", files.Position(n.Pos()), message)
				}
			}
			check(n, n.Args[before:])
		}
		return true
	})
	return found
}

// argumentsBeforeKeys returns how many arguments of a log call, or of an append to its values, precede the keys.
func argumentsBeforeKeys(call *ast.CallExpr) (before int, isLog bool) {
	switch fun := call.Fun.(type) {
	case *ast.SelectorExpr:
		switch fun.Sel.Name {
		case "Info":
			return 1, true
		case "Error":
			return 2, true
		case "WithValues":
			return 0, true
		}
	case *ast.Ident:
		if fun.Name == "append" && len(call.Args)%2 == 1 {
			_, ofCall := call.Args[0].(*ast.CallExpr)
			list, ok := call.Args[0].(*ast.Ident)
			if ofCall || ok && list.Name == "values" {
				return 1, false
			}
		}
	}
	return len(call.Args), false
}

func literal(e ast.Expr) (text string, ok bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
