package picture

import (
	"cmp"
	"io"
	"math"
	"slices"
	"strings"
)

// Series is one line of a plot. X must be above 0 and ascend.
type Series struct {
	Name, Color string
	Dashed      bool
	X, Y        []float64
}

// Plot is a plot of lines over an axis that begins at 0, and over a logarithmic one.
type Plot struct {
	Title string
	// X is what the horizontal axis is, Marks its marks.
	X     string
	Marks []float64
	Lines []Series
}

// The layout of a plot, in pixels.
const (
	plotLeft   = 76
	plotHeight = 230
	plotFoot   = 48
)

// Draw writes the plot. Each line has its name and its last value at its end, so that no legend covers a line.
func (p Plot) Draw(w io.Writer) error {
	c := New(p.Title, "")
	greatest, widest := 0.0, 0.0
	for _, line := range p.Lines {
		greatest = max(greatest, slices.Max(line.Y))
		widest = max(widest, textWidth(line.label()))
	}
	top, right := c.Top+10, Width-Margin-widest-12
	bottom := top + plotHeight
	ys := marks(greatest, 6, true)
	y := func(v float64) float64 {
		return bottom - plotHeight*v/max(ys[len(ys)-1].Value, math.SmallestNonzeroFloat64)
	}
	first, last := math.Log(p.Marks[0]), math.Log(p.Marks[len(p.Marks)-1])
	x := func(v float64) float64 {
		return plotLeft + 14 + (right-plotLeft-28)*(math.Log(v)-first)/max(last-first, 1e-9)
	}
	for _, mark := range ys {
		c.Line(plotLeft, y(mark.Value), right, y(mark.Value), Grid)
		c.Text(plotLeft-8, y(mark.Value)+4, End, Pale, mark.Label)
	}
	for _, mark := range p.Marks {
		c.Line(x(mark), top, x(mark), bottom+5, Grid)
		c.Text(x(mark), bottom+20, Middle, Pale, Number(mark))
	}
	c.Text((plotLeft+right)/2, bottom+38, Middle, Pale, p.X)
	for _, line := range p.Lines {
		line.draw(c, x, y)
	}
	p.names(c, right+4, top, bottom, y)
	return c.Write(w, bottom+plotFoot)
}

// label is what stands at the end of a line.
func (s Series) label() string { return s.Name + ": " + Number(s.Y[len(s.Y)-1]) }

func (s Series) draw(c *Card, x, y func(float64) float64) {
	var points []string
	for i := range s.X {
		points = append(points, pixels(x(s.X[i]))+","+pixels(y(s.Y[i])))
	}
	dashes := ""
	if s.Dashed {
		dashes = ` stroke-dasharray="6 4"`
	}
	c.Draw(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(points, " "), s.Color, dashes)
	for i := range s.X {
		c.Draw(`<circle cx="%s" cy="%s" r="3" fill="%s"/>`, pixels(x(s.X[i])), pixels(y(s.Y[i])), s.Color)
	}
}

// names writes the names at the ends of the lines, one below the other where lines end close together.
func (p Plot) names(c *Card, x, top, bottom float64, y func(float64) float64) {
	end := func(s Series) float64 { return y(s.Y[len(s.Y)-1]) + 4 }
	sorted := slices.SortedStableFunc(slices.Values(p.Lines), func(a, b Series) int { return cmp.Compare(end(a), end(b)) })
	at := make([]float64, len(sorted))
	for i, line := range sorted {
		at[i] = max(end(line), top+4)
		if i > 0 {
			at[i] = max(at[i], at[i-1]+Line)
		}
	}
	lowest := bottom + 4
	for i := len(at) - 1; i >= 0; i-- {
		at[i] = min(at[i], lowest)
		lowest = at[i] - Line
	}
	for i, line := range sorted {
		c.Text(x, at[i], Start, line.Color, line.label())
	}
}
