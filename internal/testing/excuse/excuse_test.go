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

	"belay.dev/belay/docs"
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

const page = "docs/not-guaranteed.md"

func readPage(t *testing.T) string {
	t.Helper()
	document, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(document)
}

// TestList: each excuse is listed in docs/not-guaranteed.md, with a reason, and used by an oracle; and what is listed there is an excuse.
func TestList(t *testing.T) {
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile(`<!-- excuse: ([a-z -]+) -->`).FindAllStringSubmatch(readPage(t), -1) {
		for name := range strings.FieldsSeq(match[1]) {
			listed[name] = true
		}
	}
	constants, used := declared(t), uses(t)
	for _, constant := range slices.Sorted(maps.Keys(constants)) {
		if name := constants[constant]; !listed[name] {
			t.Errorf("%s is not in %s: add a reason with <!-- excuse: %s -->", constant, page, name)
		}
		if !used[constant] {
			t.Errorf("no oracle uses %s: take it out, and the item of %s with it", constant, page)
		}
		delete(listed, constants[constant])
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		t.Errorf("%s lists the excuse %q, which no oracle has", page, name)
	}
}

// TestTableNamesAllCases: the table at the beginning of the page has a row for each case below it, with a link to the section of the case.
func TestTableNamesAllCases(t *testing.T) {
	text := readPage(t)
	sections := map[string]string{}
	for part := range strings.SplitSeq(text, "\n## ") {
		heading, body, _ := strings.Cut(part, "\n")
		anchor := "#" + docs.Anchor(heading)
		for _, match := range regexp.MustCompile(`(?m)^- \*\*(\d+)\. `).FindAllStringSubmatch(body, -1) {
			sections[match[1]] = anchor
		}
	}
	rows := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^\| (\d+) \| \[[^\]]+\]\((#[a-z-]+)\) \|`).FindAllStringSubmatch(text, -1) {
		rows[match[1]] = match[2]
	}
	if !maps.Equal(rows, sections) || len(rows) < 30 {
		t.Errorf("the rows are %v, the cases %v", rows, sections)
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
