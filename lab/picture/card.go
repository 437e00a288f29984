package picture

import (
	"errors"
	"fmt"
	"html"
	"io"
	"strings"
)

// Width of a picture in pixels, the space between its border and what is in it, and the height of a line of text.
const (
	Width  = 960
	Margin = 16
	Line   = 18
)

// The colours that mean the same in all pictures. Each has a contrast of 4.5 to 1 with the white of the card.
const (
	Ink    = "#222222"
	Pale   = "#666666"
	Grid   = "#dddddd"
	Gray   = "#607080"
	Green  = "#2e7d32"
	Teal   = "#00797f"
	Orange = "#a85d00"
	Purple = "#7b3fa0"
	Blue   = "#1565c0"
	Red    = "#c62828"
)

// Size of a text: that of the title, and of all else.
const (
	titleSize = 16
	textSize  = 13
)

// Anchor is the part of a text that is at its place.
type Anchor string

// The anchors.
const (
	Start  Anchor = "start"
	Middle Anchor = "middle"
	End    Anchor = "end"
)

// Card is a picture that is being drawn, in pixels from its upper left corner.
type Card struct {
	title string
	// Top is the end of the title and of the lines below it.
	Top   float64
	body  strings.Builder
	texts []extent
}

// extent is the space that a text takes.
type extent struct {
	text                     string
	left, top, right, bottom float64
}

// New begins a picture with a title, and a text that is broken into lines.
func New(title, text string) *Card {
	c := &Card{title: title, Top: 26}
	c.write(Margin, c.Top, Start, Ink, titleSize, title)
	for _, line := range wrap(text, Width-2*Margin) {
		c.Top += Line
		c.Text(Margin, c.Top, Start, Pale, line)
	}
	c.Top += 10
	return c
}

// Text writes a line.
func (c *Card) Text(x, y float64, anchor Anchor, color, text string) {
	c.write(x, y, anchor, color, textSize, text)
}

// Bold writes a line in bold letters.
func (c *Card) Bold(x, y float64, text string) { c.write(x, y, Start, Ink, boldSize, text) }

// boldSize tells a bold text of the common size apart.
const boldSize = -textSize

func (c *Card) write(x, y float64, anchor Anchor, color string, size float64, text string) {
	attributes := ""
	if anchor != Start {
		attributes += fmt.Sprintf(` text-anchor="%s"`, anchor)
	}
	if color != Ink {
		attributes += fmt.Sprintf(` fill="%s"`, color)
	}
	wide := textWidth(text)
	if size != textSize {
		attributes += ` font-weight="bold"`
		wide *= 1.1
	}
	if size == titleSize {
		attributes += fmt.Sprintf(` font-size="%d"`, titleSize)
		wide *= titleSize / float64(textSize)
	}
	fmt.Fprintf(&c.body, `<text x="%s" y="%s"%s>%s</text>`+"\n", pixels(x), pixels(y), attributes, html.EscapeString(text))
	left := x
	switch anchor {
	case Start:
	case Middle:
		left -= wide / 2
	case End:
		left -= wide
	}
	c.texts = append(c.texts, extent{text, left, y - 0.75*max(size, textSize), left + wide, y + 0.2*textSize})
}

// Rect draws a rectangle; opacity 1 is opaque.
func (c *Card) Rect(x, y, width, height float64, color string, opacity float64) {
	faint := ""
	if opacity < 1 {
		faint = fmt.Sprintf(` fill-opacity="%g"`, opacity)
	}
	fmt.Fprintf(&c.body, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s"%s/>`+"\n", pixels(x), pixels(y), pixels(width), pixels(height), color, faint)
}

// Line draws a straight line.
func (c *Card) Line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(&c.body, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>`+"\n", pixels(x1), pixels(y1), pixels(x2), pixels(y2), color)
}

// Draw adds an element as it is.
func (c *Card) Draw(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

// Write writes the picture. Texts have a white edge, so that a line of the grid does not cross their letters. It is an error if a text leaves the card or covers another one.
func (c *Card) Write(w io.Writer, height float64) error {
	if err := c.check(height); err != nil {
		return fmt.Errorf("draw %q: %w", c.title, err)
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%[2]s" viewBox="0 0 %[1]d %[2]s" role="img" font-family="sans-serif" font-size="%[3]d" fill="%[4]s">
<title>%[5]s</title>
<style>text { paint-order: stroke; stroke: #fff; stroke-width: 3px }</style>
<rect x="0.5" y="0.5" width="%[6]d" height="%[7]s" rx="6" fill="#fff" stroke="#ccc"/>
%[8]s</svg>
`, Width, pixels(height), textSize, Ink, html.EscapeString(c.title), Width-1, pixels(height-1), c.body.String())
	if err != nil {
		return fmt.Errorf("write %q: %w", c.title, err)
	}
	return nil
}

func (c *Card) check(height float64) error {
	var failed []error
	for i, t := range c.texts {
		if t.left < Margin/2 || t.right > Width-Margin/2 || t.top < 0 || t.bottom > height {
			failed = append(failed, fmt.Errorf("%q is cut off: it is at %.0f to %.0f, and %.0f to %.0f", t.text, t.left, t.right, t.top, t.bottom))
		}
		for _, other := range c.texts[:i] {
			if t.left < other.right && other.left < t.right && t.top < other.bottom && other.top < t.bottom {
				failed = append(failed, fmt.Errorf("%q covers %q", t.text, other.text))
			}
		}
	}
	return errors.Join(failed...)
}

// pixels has one decimal at most.
func pixels(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// textWidth estimates the pixels of a line from the widths of DejaVu Sans, which is wider than Arial, Helvetica and most others.
func textWidth(text string) float64 {
	em := 0.0
	for _, r := range text {
		switch {
		case strings.ContainsRune("ijl'|", r):
			em += 0.29
		case strings.ContainsRune(" .,:;/()[]-ftrI", r):
			em += 0.4
		case strings.ContainsRune("mwMW%<>→=+~", r):
			em += 0.92
		case r >= 'A' && r <= 'Z':
			em += 0.71
		default:
			em += 0.62
		}
	}
	return em * textSize
}

// wrap breaks a text into lines of at most so many pixels, between words.
func wrap(text string, pixels float64) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if longer := line + " " + word; line != "" && textWidth(longer) > pixels {
			lines, line = append(lines, line), word
		} else {
			line = strings.TrimSpace(longer)
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
