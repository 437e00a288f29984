package timeline

import (
	"fmt"
	"io"
	"time"

	"belay.dev/belay/lab/picture"
)

// The layout of an SVG chart, in pixels.
const (
	svgRow       = 20
	svgOwnerLeft = 184
	svgBarLeft   = 296
	svgBarWidth  = 566
)

// svgColors are the fills of the owners' bars; an owner without one is gray.
var svgColors = map[string]string{
	"controller": picture.Green, "attacher": picture.Teal, "driver": picture.Orange, "node": picture.Purple, "scheduler": picture.Blue,
}

// SVG draws a move as [Chart] does: one row per step, with its owner, a bar on a common time axis and its own time. The
// pale part of a bar is the time before the call began. The note is written below the title.
func SVG(w io.Writer, m *Move, note string) error {
	c := picture.New(fmt.Sprintf("%s: volume of %s, %s, %s", m.Title, m.Volume.Claim, m.route(), picture.Duration(m.Total())), note)
	bottom := c.Top + float64(svgRow*len(m.Steps)) + 6
	for _, mark := range picture.Times(m.Total(), 6) {
		x := svgBarLeft + svgBarWidth*mark.Value/max(m.Total().Seconds(), 1e-9)
		c.Line(x, c.Top, x, bottom, picture.Grid)
		c.Text(x, bottom+16, picture.Middle, picture.Pale, mark.Label)
	}
	for i, step := range m.Steps {
		svgStep(c, step, m.Total(), c.Top+float64(svgRow*i))
	}
	if err := c.Write(w, bottom+28); err != nil {
		return fmt.Errorf("write the SVG chart of %s: %w", m.Title, err)
	}
	return nil
}

// svgStep draws one row whose upper edge is at y.
func svgStep(c *picture.Card, step Step, total time.Duration, y float64) {
	c.Text(picture.Margin, y+14, picture.Start, picture.Ink, string(step.Name))
	color := svgColors[step.Owner]
	if color == "" {
		color = picture.Gray
	}
	c.Text(svgOwnerLeft, y+14, picture.Start, color, step.Owner)
	took := "-"
	if step.Seen && total > 0 {
		took = picture.Duration(step.Took())
		at := func(d time.Duration) float64 { return svgBarLeft + svgBarWidth*float64(d)/float64(total) }
		if waited := at(step.Worked) - at(step.Began); waited >= 0.1 {
			c.Rect(at(step.Began), y+4, waited, 12, color, 0.3)
		}
		c.Rect(at(step.Worked), y+4, max(at(step.Ended)-at(step.Worked), 2), 12, color, 1)
	}
	c.Text(picture.Width-picture.Margin, y+14, picture.End, picture.Ink, took)
}
