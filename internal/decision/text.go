package decision

import (
	"strings"
	"unicode/utf8"
)

// MaxText is the length of the longest text of another component that is kept, logged or shown, in bytes: such as the error of a driver.
const MaxText = 4 << 10

// ellipsis ends a truncated text.
const ellipsis = "..."

// Text returns what is kept of a text of another component.
func Text(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return Truncate(text, MaxText)
}

// Truncate shortens a text to at most so many bytes, at the edge of a character. Invalid UTF-8, which would grow when it is encoded, is replaced.
func Truncate(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	end := most - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis // a copy: a part of the text would keep all of it in memory
}
