// Package runbooks has the text of the runbooks: a page for each kind of cause, with a section for each reason.
package runbooks

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.md
var files embed.FS

// Page is a page of runbooks.
type Page struct {
	// Title is its heading.
	Title string
	// Intro is what stands before the sections, and holds for each of them.
	Intro    string
	Sections []Section
}

// Section is about one reason, which is its heading.
type Section struct{ Reason, Text string }

// Section returns the text of the section about a reason; empty if there is none.
func (p Page) Section(reason string) string {
	for _, s := range p.Sections {
		if s.Reason == reason {
			return s.Text
		}
	}
	return ""
}

// Read returns the page of this name, without its extension.
func Read(name string) (Page, error) {
	text, err := files.ReadFile(name + ".md")
	if err != nil {
		return Page{}, fmt.Errorf("read the page %s of the runbooks: %w", name, err)
	}
	head, rest, _ := strings.Cut(string(text), "\n## ")
	title, intro, _ := strings.Cut(strings.TrimPrefix(head, "# "), "\n")
	page := Page{Title: title, Intro: strings.TrimSpace(intro)}
	for section := range strings.SplitSeq(rest, "\n## ") {
		heading, body, _ := strings.Cut(section, "\n")
		page.Sections = append(page.Sections, Section{heading, strings.TrimSpace(body)})
	}
	return page, nil
}
