package excuse

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../../.."

// declared returns the excuses of this package by the names of their constants.
func declared(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "excuse.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, d := range file.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		for _, spec := range block.Specs {
			value := spec.(*ast.ValueSpec)
			name, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found[value.Names[0].Name] = name
		}
	}
	return found
}

// TestList: each excuse is listed in docs/invariants.md as not guaranteed, with a reason, and used by an oracle; and what is listed there
// is an excuse.
func TestList(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(root, "docs/invariants.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(document), "\n## Not guaranteed\n")
	if !found {
		t.Fatal("docs/invariants.md has no section \"Not guaranteed\"")
	}
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile(`<!-- excuse: ([a-z -]+) -->`).FindAllStringSubmatch(list, -1) {
		for name := range strings.FieldsSeq(match[1]) {
			listed[name] = true
		}
	}
	constants, used := declared(t), uses(t)
	for _, constant := range slices.Sorted(maps.Keys(constants)) {
		if name := constants[constant]; !listed[name] {
			t.Errorf("%s is not in docs/invariants.md under \"Not guaranteed\": add a reason with <!-- excuse: %s -->", constant, name)
		}
		if !used[constant] {
			t.Errorf("no oracle uses %s: take it out, and the item of docs/invariants.md with it", constant)
		}
		delete(listed, constants[constant])
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		t.Errorf("docs/invariants.md lists the excuse %q, which no oracle has", name)
	}
}

// uses returns the constants that tests and the lab use.
func uses(t *testing.T) map[string]bool {
	t.Helper()
	found, use := map[string]bool{}, regexp.MustCompile(`\bexcuse\.([A-Z]\w+)`)
	for _, dir := range []string{"internal", "lab"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range use.FindAllSubmatch(source, -1) {
				found[string(match[1])] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
