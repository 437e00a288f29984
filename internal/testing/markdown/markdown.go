// Package markdown reads the repository's documents in tests.
package markdown

import (
	"regexp"
	"strings"
	"unicode"
)

// Fenced is a block of code.
var Fenced = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```")

// Anchors are the fragments of a document's headings, which are outside of code.
func Anchors(text string) (names []string) {
	for line := range strings.Lines(Fenced.ReplaceAllString(text, "")) {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			names = append(names, Anchor(title))
		}
	}
	return names
}

// Anchor is the fragment of a heading, as GitHub makes it.
func Anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return r
		}
		return -1
	}, strings.ToLower(strings.TrimSpace(heading)))
}
