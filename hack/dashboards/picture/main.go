// Command picture draws the panels of the dashboards from what their queries returned, as a stand-in for Grafana: it shows whether
// titles, units, legends and lines can be read, and looks only roughly like Grafana. TestDashboards of lab/e2e writes the results
// (BELAY_DASHBOARDS=FILE):
//
//	go run ./picture FILE FOLDER
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// panel is what the test writes.
type panel struct {
	Board, Title, Type, Unit string
	Log                      bool
	Position                 struct{ X, Y, W, H int }
	Lines                    []struct {
		Name   string
		Points [][2]float64
	}
}

// One cell of the grid.
const cellWidth, cellHeight vg.Length = 36, 26

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: picture FILE FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(file, folder string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var panels []panel
	if err := json.Unmarshal(raw, &panels); err != nil {
		return err
	}
	boards := map[string][]panel{}
	for _, p := range panels {
		boards[p.Board] = append(boards[p.Board], p)
	}
	for name, panels := range boards {
		if err := drawBoard(panels, filepath.Join(folder, name+".png")); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func drawBoard(panels []panel, file string) error {
	rows, from, to := 0, math.Inf(1), math.Inf(-1)
	for _, p := range panels {
		rows = max(rows, p.Position.Y+p.Position.H)
		for _, l := range p.Lines {
			from, to = min(from, l.Points[0][0]), max(to, l.Points[len(l.Points)-1][0])
		}
	}
	height := vg.Length(rows) * cellHeight
	img := vgimg.NewWith(vgimg.UseWH(24*cellWidth, height), vgimg.UseDPI(72))
	all := draw.New(img)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	for _, p := range panels {
		x, top := vg.Length(p.Position.X)*cellWidth, height-vg.Length(p.Position.Y)*cellHeight
		c := draw.Canvas{Canvas: all.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: x + 6, Y: top - vg.Length(p.Position.H)*cellHeight + 4}, Max: vg.Point{X: x + vg.Length(p.Position.W)*cellWidth - 6, Y: top - 4},
		}}
		switch p.Type {
		case "row":
			write(c, p.Title, 14, c.Max.Y-16, color.Gray{80})
		case "stat":
			write(c, p.Title, 11, c.Max.Y-14, color.Black)
			write(c, last(p), 26, c.Max.Y-50, color.RGBA{30, 120, 60, 255})
		default:
			if err := drawLines(c, p, from, to); err != nil {
				return err
			}
		}
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(out); err != nil {
		return err
	}
	return out.Close()
}

func write(c draw.Canvas, s string, size, y vg.Length, ink color.Color) {
	style := text.Style{Color: ink, Font: font.From(plot.DefaultFont, size), Handler: plot.DefaultTextHandler}
	style.Font.Variant = "Sans"
	c.FillText(style, vg.Point{X: c.Min.X + 4, Y: y}, s)
}

// drawLines draws the axes and lines, and the legend below, as a table with the last value, as the dashboards ask for.
func drawLines(c draw.Canvas, p panel, from, to float64) error {
	const legend = 11 // height of a line of the legend
	shown := min(len(p.Lines), 8)
	graph := plot.New()
	graph.X.Tick.Marker = plot.TimeTicks{Format: "15:04:05"}
	graph.X.Tick.Label.Font.Size, graph.Y.Tick.Label.Font.Size = 8, 8
	graph.Y.Min = 0
	if p.Log {
		graph.Y.Min = 1e-3
	}
	graph.X.Min, graph.X.Max = from, to
	graph.Y.Tick.Marker = ticks{plot.DefaultTicks{}, p.Unit}
	for i, l := range p.Lines {
		points := make(plotter.XYs, len(l.Points))
		for j, at := range l.Points {
			points[j].X, points[j].Y = at[0], at[1]
			if p.Log {
				points[j].Y = max(at[1], 1e-3)
			}
		}
		drawn, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		drawn.Color, drawn.Width = plotutil.SoftColors[i%len(plotutil.SoftColors)], 1.2
		graph.Add(drawn)
	}
	if graph.Y.Max <= graph.Y.Min {
		graph.Y.Max = 1
	}
	if p.Log {
		graph.Y.Scale = plot.LogScale{}
		graph.Y.Tick.Marker = ticks{plot.LogTicks{Prec: -1}, p.Unit}
	}
	write(c, p.Title, 11, c.Max.Y-12, color.Black)
	for i, l := range p.Lines {
		name := l.Name + "  " + human(l.Points[len(l.Points)-1][1], p.Unit)
		if i == shown-1 && len(p.Lines) > shown {
			name = fmt.Sprintf("and %d more", len(p.Lines)-i)
		}
		if i < shown {
			write(c, name, 8, c.Min.Y+vg.Length(shown-i-1)*legend+2, plotutil.SoftColors[i%len(plotutil.SoftColors)])
		}
	}
	c.Min.Y += vg.Length(shown)*legend + 4
	c.Max.Y -= 18
	graph.Draw(c)
	return nil
}

// ticks are those of another ticker, labelled in the panel's unit.
type ticks struct {
	plot.Ticker
	unit string
}

// Ticks returns them.
func (t ticks) Ticks(low, high float64) []plot.Tick {
	all := t.Ticker.Ticks(low, high)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = human(all[i].Value, t.unit)
		}
	}
	return all
}

func last(p panel) string {
	if len(p.Lines) == 0 {
		return "No data"
	}
	points := p.Lines[0].Points
	return human(points[len(points)-1][1], p.Unit)
}

// human is a value in a unit of Grafana.
func human(v float64, unit string) string {
	switch unit {
	case "s":
		switch {
		case v >= 1 || v == 0:
			return fmt.Sprintf("%.3g s", v)
		case v >= 1e-3:
			return fmt.Sprintf("%.3g ms", v*1e3)
		}
		return fmt.Sprintf("%.3g µs", v*1e6)
	case "bytes":
		return fmt.Sprintf("%.3g MiB", v/(1<<20))
	case "ops":
		return fmt.Sprintf("%.3g/s", v)
	case "percentunit":
		return fmt.Sprintf("%.3g %%", v*100)
	}
	if v >= 1e4 {
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}
