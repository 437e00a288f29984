// Package markdown reads the repository's documents in tests.
package markdown

import (
	"regexp"
	"strings"

	"belay.dev/belay/docs"
)

// Fenced is a block of code.
var Fenced = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```")

var named = regexp.MustCompile(`<a id="([^"]+)"></a>`)

// Anchors are the fragments of a document: of its headings, and its named anchors, outside of code.
func Anchors(text string) (names []string) {
	for line := range strings.Lines(Fenced.ReplaceAllString(text, "")) {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			names = append(names, docs.Anchor(title))
		}
		for _, match := range named.FindAllStringSubmatch(line, -1) {
			names = append(names, match[1])
		}
	}
	return names
}
