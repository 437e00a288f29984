package house

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	// longestLine is the most characters of a line of prose, so that a change of a sentence is a change of a line.
	longestLine = 160
	// longestCell is the most characters of a table's cell: GitHub shows a paragraph in a cell as a column of words.
	longestCell = 120
)

// TestLinesAreShort checks README.md and the pages below docs/. ADRs are records of their time, and the pages of docs/conformance have tests of
// their own for their form.
func TestLinesAreShort(t *testing.T) {
	pages := 0
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/differences/*.md", "docs/flags/*.md", "docs/metrics/*.md", "docs/output/*.md", "docs/recovery/*.md", "docs/runbooks/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range found {
			pages++
			for _, problem := range longIn(read(t, page)) {
				t.Errorf("%s:%s", strings.TrimPrefix(page, root+"/"), problem)
			}
		}
	}
	if pages < 40 {
		t.Errorf("only %d pages were found: the test looks at too little", pages)
	}
}

// TestLongLinesAreFound shows that the search can fail.
func TestLongLinesAreFound(t *testing.T) {
	word := strings.Repeat("é", 40)
	prose := strings.TrimSpace(strings.Repeat(word+" ", 4)) // 163
	for text, want := range map[string]int{
		prose:                                                   1,
		prose[:len(prose)-len("éééé")]:                          0,
		"[a](" + word + word + word + word + ")":                0, // what GitHub shows is short
		"[" + prose + "](b.md)":                                 1,
		"- " + prose + "\n  " + prose:                           2,
		"```\n" + prose + "\n```":                               0,
		"  ```\n" + prose + "\n  ```":                           0,
		"| a | " + word + word + " |":                           0,
		"| a | " + prose + " |":                                 1,
		"| `" + prose + "`, `b` |":                              0,
		"| use `" + prose + "` |":                               1,
		"| " + prose + " | " + prose:                            2,
		"| a | " + word + `\|` + word:                           0,
		"| " + word + " | " + word + " |":                       0,
		"| a | [" + word + "](" + word + word + word + ".md) |": 0,
	} {
		if got := longIn(text); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
}

var target = regexp.MustCompile(`\]\([^)\s]*\)`)

// longIn lists the lines and cells of a page that are too long. The target of a link is not counted. Code fences are output, and a
// cell of code alone is copied as a whole.
func longIn(text string) (found []string) {
	text = fenced.ReplaceAllStringFunc(text, func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) })
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = target.ReplaceAllString(strings.TrimSpace(line), "]()")
		parts, longest, what := []string{line}, longestLine, "a line"
		if strings.HasPrefix(line, "|") {
			parts, longest, what = strings.Split(strings.ReplaceAll(line, `\|`, "/"), "|"), longestCell, "a cell"
		}
		for _, part := range parts {
			if what == "a cell" && strings.Trim(inline.ReplaceAllString(part, ""), ", ") == "" {
				continue
			}
			if length := utf8.RuneCountInString(strings.TrimSpace(part)); length > longest {
				found = append(found, fmt.Sprintf("%d: %s has %d characters, more than %d: %.40s...", number, what, length, longest, strings.TrimSpace(part)))
			}
		}
	}
	return found
}
