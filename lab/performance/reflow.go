package main

import "strings"

// reflowed is the width of the prose of the page.
const reflowed = 120

// reflow breaks the paragraphs and list items of a page into lines, and removes empty lines that follow another one.
// Headings, tables, pictures and comments stay as they are.
func reflow(page string) string {
	var out strings.Builder
	var words []string
	indent := ""
	flush := func() {
		column := 0
		for i, word := range words {
			switch {
			case i == 0:
			case column+1+len(word) > reflowed && !startsBlock(word):
				out.WriteString("\n" + indent)
				column = len(indent)
			default:
				out.WriteByte(' ')
				column++
			}
			out.WriteString(word)
			column += len(word)
		}
		if len(words) > 0 {
			out.WriteByte('\n')
		}
		words, indent = nil, ""
	}
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, " \n")
		switch {
		case line == "":
			flush()
			if !strings.HasSuffix(out.String(), "\n\n") {
				out.WriteByte('\n')
			}
		case strings.ContainsAny(line[:1], "|#!<"):
			flush()
			out.WriteString(line + "\n")
		case strings.HasPrefix(line, "- "):
			flush()
			indent = "  "
			words = strings.Fields(line)
		default:
			words = append(words, strings.Fields(line)...)
		}
	}
	flush()
	return out.String()
}

// startsBlock: at the start of a line, Markdown would take the word for a heading or a list.
func startsBlock(word string) bool {
	return strings.Trim(word, "-+*#=") == "" || strings.HasSuffix(word, ".") && strings.Trim(word, "0123456789.") == ""
}
