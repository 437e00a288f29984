// Package docs has the pages that the programs refer to beside the runbooks: who runs the plugin has no copy of the repository.
package docs

import (
	"embed"
	"fmt"
	"strings"
	"unicode"
)

//go:embed adopt-controller.md compatibility.md kubectl-belay.md migrate.md operate.md recovery/README.md recovery/nodes-and-people.md recovery/power-switches.md
var files embed.FS

// Section returns the heading and the text of a section: "migrate#back" is that of migrate.md whose heading has the anchor back. Without an anchor it is the
// whole page.
func Section(name string) (heading, text string, err error) {
	page, anchor, _ := strings.Cut(name, "#")
	content, err := files.ReadFile(page + ".md")
	if err != nil {
		return "", "", fmt.Errorf("read the page %s: %w", page, err)
	}
	var lines []string
	level, code := 0, false
	for line := range strings.Lines(string(content)) {
		title := strings.TrimLeft(line, "#")
		depth := len(line) - len(title)
		code = code != strings.HasPrefix(strings.TrimSpace(line), "```")
		isHeading := !code && depth > 0 && strings.HasPrefix(title, " ")
		switch {
		case level == 0 && isHeading && (anchor == "" || Anchor(title) == anchor):
			heading, level = strings.TrimSpace(title), depth
		case level > 0 && isHeading && depth <= level:
			return heading, strings.Join(lines, ""), nil
		case level > 0:
			lines = append(lines, line)
		}
	}
	if level == 0 {
		return "", "", fmt.Errorf("the page %s has no section %s", page, anchor)
	}
	return heading, strings.Join(lines, ""), nil
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
