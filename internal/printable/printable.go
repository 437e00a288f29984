// Package printable is the edge between belay's programs and a terminal. Objects, errors and logs have text that others wrote: a control
// sequence in it could move the cursor, rename the window or turn the line around.
package printable

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Stdout and Stderr are what programs write to. The test hack/house/printable_test.go finds other uses of the files behind them.
var (
	Stdout = New(os.Stdout)
	Stderr = New(os.Stderr)
)

// Style is a control sequence of a program's own. Its String becomes that sequence in a Writer, and in no other.
type Style int

// The styles.
const (
	Red Style = iota
	Yellow
	Green
	Bold
	Plain  // ends the colors
	Clear  // clears the screen
	Return // moves the cursor to the beginning of its line
)

var sequences = [...]string{Red: "\x1b[1;31m", Yellow: "\x1b[1;33m", Green: "\x1b[1;32m", Bold: "\x1b[1m", Plain: "\x1b[0m", Clear: "\x1b[H\x1b[2J", Return: "\r"}

// mark begins each style until a Writer replaces it. It is another one in each process and no Writer writes it, so no object can have it.
var mark = "\x1b" + rand.Text()

// String returns the style as a Writer takes it.
func (s Style) String() string { return mark + string(rune('a'+int(s))) }

// Writer lets through printable text, line feeds, tabs and the program's styles. All other runes become the escapes of JSON, such as
// \u001b, so that a document in JSON keeps its meaning; a byte that is not UTF-8 becomes U+FFFD.
type Writer struct {
	out io.Writer

	mu sync.Mutex
	// rest is the beginning of a rune or a style, until a later Write has its end.
	rest []byte
}

// New returns a Writer to out.
func New(out io.Writer) *Writer { return &Writer{out: out} }

// Write writes what is printable of a text.
func (w *Writer) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := text
	if len(w.rest) > 0 {
		all = append(w.rest, text...)
	}
	clean, rest := escape(all, true)
	w.rest = bytes.Clone(rest)
	if len(clean) == 0 {
		return len(text), nil
	}
	if n, err := w.out.Write(clean); err != nil {
		return min(n, len(text)), err
	}
	return len(text), nil
}

// Text returns a text as a Writer writes it. No styles are in it.
func Text(text string) string {
	clean, rest := escape([]byte(text), false)
	if len(clean) == len(text) && len(rest) == 0 {
		return text // whatever is replaced becomes longer
	}
	return string(clean) + strings.Repeat(string(utf8.RuneError), len(rest))
}

// Line is Text on one line: a line feed or a tab becomes a space. A text of others that is a part of a line would else make lines of its own.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, Text(text))
}

// escape returns what a Writer writes for a text, and the rest of it, which could be the beginning of a rune or, with styles, of one of them.
func escape(text []byte, styles bool) (clean, rest []byte) {
	from := 0 // what is before it is in clean
	for at := 0; at < len(text); {
		if c := text[at]; c >= ' ' && c <= '~' || c == '\n' || c == '\t' {
			at++
			continue
		}
		if !utf8.FullRune(text[at:]) {
			return join(clean, text[from:at]), text[at:]
		}
		r, size := utf8.DecodeRune(text[at:])
		if unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			at += size
			continue
		}
		clean = append(clean, text[from:at]...)
		if styles && text[at] == mark[0] {
			sequence, length, more := styleAt(text[at:])
			if more {
				return clean, text[at:]
			}
			if length > 0 {
				clean = append(clean, sequence...)
				at += length
				from = at
				continue
			}
		}
		clean = appendEscape(clean, r)
		at += size
		from = at
	}
	return join(clean, text[from:]), nil
}

// join appends; the first part of a text is not copied.
func join(clean, part []byte) []byte {
	if clean == nil {
		return part
	}
	return append(clean, part...)
}

// styleAt returns the style that a text begins with and its length there; more reports that the text is too short to tell.
func styleAt(text []byte) (sequence string, length int, more bool) {
	if len(text) <= len(mark) {
		return "", 0, strings.HasPrefix(mark, string(text))
	}
	style := int(text[len(mark)]) - 'a'
	if string(text[:len(mark)]) != mark || style < 0 || style >= len(sequences) {
		return "", 0, false
	}
	return sequences[style], len(mark) + 1, false
}

// appendEscape appends a rune as JSON escapes it.
func appendEscape(clean []byte, r rune) []byte {
	switch {
	case r == utf8.RuneError:
		return utf8.AppendRune(clean, r)
	case r > 0xffff:
		first, second := utf16.EncodeRune(r)
		return fmt.Appendf(clean, `\u%04x\u%04x`, first, second)
	}
	return fmt.Appendf(clean, `\u%04x`, r)
}
