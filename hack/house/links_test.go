package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/markdown"
)

// root is the repository, as seen from this folder.
var root = filepath.Join("..", "..")

// TestLinksLead checks every relative link in the documents: the file exists, a fragment of a Go file names a symbol
// that it declares (`file.go#Name` or `file.go#Type.method`), and a fragment of a document names one of its headings.
func TestLinksLead(t *testing.T) {
	links := 0
	for _, page := range documents(t) {
		text := read(t, page)
		for _, link := range linksIn(text) {
			links++
			if err := follow(page, link); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found: the test looks at too little", links)
	}
}

// TestArchitectureNamesTheLines checks that the tables of ARCHITECTURE.md have a row for each step and each invariant, and
// that each cell of it links a symbol.
func TestArchitectureNamesTheLines(t *testing.T) {
	required := []string{"attach", "report", "stage", "publish", "unpublish", "detach"}
	for i := range 10 {
		required = append(required, fmt.Sprintf("S%d", i+1))
	}
	var seen []string
	for line := range strings.Lines(read(t, filepath.Join(root, "ARCHITECTURE.md"))) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 4 || strings.Contains(line, "| test |") {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(cells[0]), ":")
		seen = append(seen, name)
		for _, cell := range cells[1:] {
			if !strings.Contains(cell, ".go#") {
				t.Errorf("row %q: %q links no symbol", name, strings.TrimSpace(cell))
			}
		}
		if !strings.Contains(cells[3], "_test.go#Test") {
			t.Errorf("row %q links no test", name)
		}
	}
	for _, name := range required {
		if !slices.Contains(seen, name) {
			t.Errorf("ARCHITECTURE.md has no row for %s", name)
		}
	}
}

// TestIndexReachesAllPages: docs/README.md has the six parts of the documentation, by what a reader wants, and each page below docs/ can be reached from it.
func TestIndexReachesAllPages(t *testing.T) {
	index := filepath.Join(root, "docs", "README.md")
	for _, part := range []string{"find-out", "recover", "replace", "judge", "reference", "contribute"} {
		if err := follow(index, "#"+part); err != nil {
			t.Error(err)
		}
	}
	reached, pages := map[string]bool{}, []string{index}
	for len(pages) > 0 {
		page := pages[0]
		if pages = pages[1:]; reached[page] {
			continue
		}
		reached[page] = true
		for _, link := range linksIn(read(t, page)) {
			target, _, _ := strings.Cut(link, "#")
			if target = filepath.Join(filepath.Dir(page), target); filepath.Ext(target) == ".md" && strings.HasPrefix(target, filepath.Dir(index)) {
				pages = append(pages, target)
			}
		}
	}
	for _, page := range documents(t) {
		if strings.HasPrefix(page, filepath.Dir(index)) && !reached[page] {
			t.Errorf("%s cannot be reached from docs/README.md", page)
		}
	}
}

// TestBrokenLinksAreFound shows that the search can fail.
func TestBrokenLinksAreFound(t *testing.T) {
	page := filepath.Join(root, "README.md")
	for link, want := range map[string]bool{
		"LICENSE":                                         true,
		"docs/nothing.md":                                 false,
		"docs/demo.md#the-demo":                           true,
		"docs/demo.md#nothing":                            false,
		"hack/house/links_test.go":                        true,
		"hack/house/links_test.go#follow":                 true,
		"hack/house/links_test.go#followed":               false,
		"internal/attachment/decide.go#plan.attachAt":     true,
		"internal/attachment/decide.go#plan.attachedAway": false,
		"internal/attachment/decide.go#attachAt":          false,
	} {
		if err := follow(page, link); (err == nil) != want {
			t.Errorf("%s: error %v, want it to lead somewhere: %v", link, err, want)
		}
	}
	text := "[a](b.md) and\n```\n[c](d.md)\n```\nand `[e](f.md)`, [g](https://example.com)\n![h](i.svg)\n"
	if got := linksIn(text); !slices.Equal(got, []string{"b.md", "i.svg"}) {
		t.Errorf("links = %v, want b.md and i.svg", got)
	}
}

// documents are the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/*/*.md", "deploy/*/*.md", "lab/*/*.md", "node/*.md"} {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pages...)
	}
	if len(found) < 20 {
		t.Fatalf("only %d documents were found", len(found))
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	fenced = markdown.Fenced
	inline = regexp.MustCompile("`[^`\n]*`")
	linked = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// linksIn are the targets of a page's relative links, outside of code.
func linksIn(text string) (found []string) {
	text = inline.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	for _, match := range linked.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(match[1], "://") {
			found = append(found, match[1])
		}
	}
	return found
}

// follow returns an error if a link of a page leads nowhere.
func follow(page, link string) error {
	target, fragment, _ := strings.Cut(link, "#")
	path := page
	if target != "" {
		path = filepath.Join(filepath.Dir(page), target)
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	if fragment == "" {
		return nil
	}
	var names []string
	var err error
	switch filepath.Ext(path) {
	case ".go":
		names, err = symbols(path)
	case ".md":
		var text []byte
		text, err = os.ReadFile(path)
		names = markdown.Anchors(string(text))
	default:
		return fmt.Errorf("link %s: only Go files and documents have fragments", link)
	}
	if err == nil && !slices.Contains(names, fragment) {
		err = fmt.Errorf("it has no %s", fragment)
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	return nil
}

// symbols are what a Go file declares: functions, types, variables and constants by name, methods as Type.method.
func symbols(path string) (names []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			names = append(names, receiver(d)+d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names, nil
}

// receiver is "Type." for a method, and empty for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	name := f.Recv.List[0].Type
	if star, ok := name.(*ast.StarExpr); ok {
		name = star.X
	}
	if generic, ok := name.(*ast.IndexExpr); ok {
		name = generic.X
	}
	if id, ok := name.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}
