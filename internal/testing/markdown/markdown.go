// Package markdown reads the repository's documents in tests.
package markdown

import (
	"regexp"
	"strings"
	"unicode"
)

// Fenced is a block of code.
var Fenced = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```")

var named = regexp.MustCompile(`<a id="([^"]+)"></a>`)

// Anchors are the fragments of a document: of its headings, and its named anchors, outside of code.
func Anchors(text string) (names []string) {
	for line := range strings.Lines(Fenced.ReplaceAllString(text, "")) {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			names = append(names, Anchor(title))
		}
		for _, match := range named.FindAllStringSubmatch(line, -1) {
			names = append(names, match[1])
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
