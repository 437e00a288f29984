package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEventsAreDocumented checks docs/events.md against the programs, both ways: each reason of an event that they emit has a row,
// and each row is about one that they emit.
func TestEventsAreDocumented(t *testing.T) {
	page := read(t, filepath.Join(root, "docs", "events.md"))
	documented := map[string]bool{}
	for row := range strings.Lines(page) {
		cells := strings.Split(row, "|")
		if len(cells) < 5 || !strings.Contains(cells[2], "Normal") && !strings.Contains(cells[2], "Warning") {
			continue
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented[name[1]] = true
		}
	}
	emitted, calls := emittedReasons(t)
	if calls < 10 {
		t.Errorf("only %d calls that emit events were found", calls)
	}
	for _, reason := range emitted {
		if !documented[reason] {
			t.Errorf("docs/events.md does not explain the event %s", reason)
		}
		delete(documented, reason)
	}
	for reason := range documented {
		t.Errorf("docs/events.md has the event %s, which no program emits", reason)
	}
}

// emittedReasons are the reasons of the events that the programs emit: the constants whose value is their own name or that are
// named after a reason, where the package that emits events uses them or internal/explain chooses them, and the literals at the
// calls of a recorder.
func emittedReasons(t *testing.T) (reasons []string, calls int) {
	t.Helper()
	constants, used := map[string]string{}, map[string]bool{}
	files := token.NewFileSet()
	for _, folder := range []string{"explain", "attachdetach", "nodeagent", "attacher"} {
		err := filepath.WalkDir(filepath.Join(root, "internal", folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			eventConstants(file, constants)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if literal, emits := emits(n); emits {
						calls++
						reasons = append(reasons, literal)
					}
				case *ast.SelectorExpr:
					used[n.Sel.Name] = true
				case *ast.ReturnStmt:
					for _, result := range n.Results {
						if name, ok := result.(*ast.Ident); ok {
							used[name.Name] = true
						}
					}
				case *ast.Ident:
					if strings.HasSuffix(n.Name, "Reason") {
						used[n.Name] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range constants {
		if used[name] {
			reasons = append(reasons, value)
		}
	}
	slices.Sort(reasons)
	return slices.DeleteFunc(slices.Compact(reasons), func(r string) bool { return r == "" }), calls
}

// eventConstants collects the untyped string constants that look like the reason of an event.
func eventConstants(file *ast.File, into map[string]string) {
	for _, declaration := range file.Decls {
		constants, ok := declaration.(*ast.GenDecl)
		if !ok || constants.Tok != token.CONST {
			continue
		}
		for _, spec := range constants.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok || value.Type != nil || len(value.Names) != 1 || len(value.Values) != 1 {
				continue
			}
			literal, ok := value.Values[0].(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				continue
			}
			text, err := strconv.Unquote(literal.Value)
			if name := value.Names[0].Name; err == nil && (text == name || strings.HasSuffix(name, "Reason") && text != "") {
				into[name] = text
			}
		}
	}
}

// emits reports whether the call emits an event, and returns its reason if that is a literal.
func emits(call *ast.CallExpr) (literal string, ok bool) {
	function, isMethod := call.Fun.(*ast.SelectorExpr)
	if !isMethod || !slices.Contains([]string{"Event", "Eventf", "AnnotatedEventf"}, function.Sel.Name) || len(call.Args) < 4 {
		return "", false
	}
	for _, arg := range call.Args[2:4] {
		if text, isLiteral := arg.(*ast.BasicLit); isLiteral && text.Kind == token.STRING {
			if reason, err := strconv.Unquote(text.Value); err == nil && !strings.Contains(reason, "%") {
				return reason, true
			}
		}
	}
	return "", true
}
