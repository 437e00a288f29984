package conformance

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Page renders a table as a Markdown page in docs/conformance. The file of the table is given relative to the root of the module.
func (t *Table) Page(file string, sources *Sources) (string, error) {
	var page strings.Builder
	module := Modules[t.Module]
	safety := 0
	for _, r := range t.Rows() {
		if r.Safety {
			safety++
		}
	}
	fmt.Fprintf(&page, `# Conformance of %s

<!-- Rendered from %s by `+"`make conformance`"+`; do not edit. -->

%d rows, compared with `+"`%s`"+` %s; [how to read them](README.md). %d of them bear on the [invariants](../invariants.md) S1 to S10: these are marked and need a test.
`, t.Component, file, len(t.Rows()), module.Path, module.Version, safety)
	for _, g := range t.Groups {
		fmt.Fprintf(&page, "\n## %s\n\n| row | upstream | what it does | tests | difference |\n|---|---|---|---|---|\n", g.Name)
		for _, r := range g.Rows {
			tests, err := r.tests(sources)
			if err != nil {
				return "", err
			}
			about := r.About
			if r.Safety {
				about += " **S**"
			}
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s |\n", cell(r.ID), r.link(), cell(about), tests, cell(strings.Join(r.Differs, "; ")))
		}
	}
	return page.String(), nil
}

// link leads to the line of upstream. Its text is the name that is found there or, if that is the row's ID, the file and line.
func (r Row) link() string {
	text := r.Name
	if text == r.ID {
		text = strings.Replace(path.Base(r.Upstream), "#L", ":", 1)
	}
	return fmt.Sprintf("[`%s`](%s)", cell(text), Modules[r.Module].Source+r.Upstream)
}

// tests links the test functions of a row, each once.
func (r Row) tests(sources *Sources) (string, error) {
	var links []string
	for _, name := range r.Tests {
		file, err := sources.File(name)
		if err == nil {
			file, err = filepath.Rel(filepath.Join(moduleRoot(), "docs", "conformance"), file)
		}
		if err != nil {
			return "", fmt.Errorf("row %s: %w", r.ID, err)
		}
		_, after, _ := strings.Cut(name, "Test")
		function, _, _ := strings.Cut("Test"+after, "/")
		link := fmt.Sprintf("[%s](%s#%s)", function, filepath.ToSlash(file), function)
		if !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return strings.Join(links, ", "), nil
}

// cell escapes what would end the cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
