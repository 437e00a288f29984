package timeline

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// The layout of an SVG chart, in pixels.
const (
	svgWidth     = 960
	svgRow       = 20
	svgHead      = 62
	svgOwnerLeft = 160
	svgBarLeft   = 270
	svgBarWidth  = 590
)

// svgColors are the fills of the owners' bars; an owner without one is svgOther.
var svgColors = map[string]string{
	"controller": "#2e7d32", "attacher": "#00838f", "driver": "#b26a00", "node": "#7b3fa0", "scheduler": "#1565c0",
}

const svgOther = "#78909c"

// SVG draws a move as [Chart] does: one row per step, with its owner, a bar on a common time axis and its own time. The
// pale part of a bar is the time before the call began. The picture needs no font, script or file besides itself.
func SVG(w io.Writer, m *Move) error {
	out := &strings.Builder{}
	height := svgHead + svgRow*len(m.Steps) + 34
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" fill="#222">`+"\n",
		svgWidth, height, svgWidth, height)
	fmt.Fprintf(out, `<rect width="%d" height="%d" rx="6" fill="#fff" stroke="#ccc"/>`+"\n", svgWidth, height)
	svgText(out, 16, 26, `font-size="16" font-weight="bold"`, fmt.Sprintf("%s: volume of %s, %s, %s", m.Title, m.Volume.Claim, m.route(), millis(m.Total())))
	svgAxis(out, m.Total(), height)
	for i, step := range m.Steps {
		svgStep(out, step, m.Total(), svgHead+svgRow*i)
	}
	out.WriteString("</svg>\n")
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write the SVG chart of %s: %w", m.Title, err)
	}
	return nil
}

// svgAxis draws four vertical lines with their times.
func svgAxis(out *strings.Builder, total time.Duration, height int) {
	for i := range 5 {
		x := svgBarLeft + svgBarWidth*i/4
		fmt.Fprintf(out, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ddd"/>`+"\n", x, svgHead-8, x, height-26)
		svgText(out, x, height-10, `text-anchor="middle" fill="#666"`, fmt.Sprintf("%d ms", (total*time.Duration(i)/4).Milliseconds()))
	}
}

// svgStep draws one row whose upper edge is at y.
func svgStep(out *strings.Builder, step Step, total time.Duration, y int) {
	svgText(out, 16, y+14, "", string(step.Name))
	color := svgColors[step.Owner]
	if color == "" {
		color = svgOther
	}
	svgText(out, svgOwnerLeft, y+14, `fill="`+color+`"`, step.Owner)
	if !step.Seen || total <= 0 {
		svgText(out, svgWidth-16, y+14, `text-anchor="end"`, "-")
		return
	}
	at := func(d time.Duration) float64 { return svgBarLeft + svgBarWidth*float64(d)/float64(total) }
	fmt.Fprintf(out, `<rect x="%.1f" y="%d" width="%.1f" height="12" fill="%s" fill-opacity="0.3"/>`+"\n",
		at(step.Began), y+4, at(step.Worked)-at(step.Began), color)
	fmt.Fprintf(out, `<rect x="%.1f" y="%d" width="%.1f" height="12" fill="%s"/>`+"\n",
		at(step.Worked), y+4, max(at(step.Ended)-at(step.Worked), 2), color)
	svgText(out, svgWidth-16, y+14, `text-anchor="end"`, millis(step.Took()))
}

func svgText(out *strings.Builder, x, y int, attributes, text string) {
	if attributes != "" {
		attributes = " " + attributes
	}
	fmt.Fprintf(out, `<text x="%d" y="%d"%s>%s</text>`+"\n", x, y, attributes, html.EscapeString(text))
}
