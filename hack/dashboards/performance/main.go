// Command performance draws the figures of `belay-lab bench scale` and writes docs/performance.md from them:
//
//	go run ./performance ../../docs/performance/scale.csv ../../docs
package main

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"image/color"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

//go:embed performance.md.tmpl
var page string

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: performance FILE FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}

// key is what a value is of.
type key struct{ plane, component, figure string }

// figures are all values, by what they are of and the number of volumes.
type figures struct {
	facts  []fact
	units  map[string]string
	values map[key]map[int]float64
	sizes  []size
}

type size struct{ Volumes, Nodes, Pods int }

// fact is a comment of the file: a version, a flag, the machine.
type fact struct{ Key, Value string }

func run(file, folder string) error {
	f, err := read(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(folder, "performance"), 0o755); err != nil {
		return err
	}
	var failed error
	template, err := template.New("performance.md").Funcs(template.FuncMap{
		"sizes": func() []size { return f.sizes },
		"facts": func() []fact { return f.facts },
		"fact":  f.fact,
		"has":   func(figure string) bool { return len(f.of(figure)) > 0 },
		"ratio": ratio,
		"table": f.table,
		"plot": func(name, figure string) string {
			if err := f.draw(filepath.Join(folder, "performance", name+".svg"), figure); err != nil {
				failed = err
			}
			return fmt.Sprintf("![%s](performance/%s.svg)", figure, name)
		},
		"at":      f.at,
		"largest": func() size { return f.sizes[len(f.sizes)-1] },
		"next":    f.next,
		"div":     func(a, b float64) float64 { return a / b },
	}).Parse(page)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := template.Execute(&out, nil); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return os.WriteFile(filepath.Join(folder, "performance.md"), out.Bytes(), 0o644)
}

func read(file string) (*figures, error) {
	in, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	reader := csv.NewReader(bytes.NewReader(in))
	reader.Comment = '#'
	rows, err := reader.ReadAll()
	if err == nil && len(rows) == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	f := &figures{units: map[string]string{}, values: map[key]map[int]float64{}}
	for line := range strings.Lines(string(in)) {
		comment, is := strings.CutPrefix(line, "# ")
		if key, value, ok := strings.Cut(strings.TrimSpace(comment), ": "); is && ok {
			f.facts = append(f.facts, fact{key, value})
		}
	}
	for n, row := range rows[1:] {
		var s size
		value, err := strconv.ParseFloat(row[7], 64)
		if err == nil {
			_, err = fmt.Sscan(row[0]+" "+row[1]+" "+row[2], &s.Volumes, &s.Nodes, &s.Pods)
		}
		if err != nil {
			return nil, fmt.Errorf("%s, row %d: %w", file, n+2, err)
		}
		k := key{row[3], row[4], row[5]}
		if f.values[k] == nil {
			f.values[k] = map[int]float64{}
		}
		f.values[k][s.Volumes], f.units[k.figure] = value, row[6]
		if !slices.Contains(f.sizes, s) {
			f.sizes = append(f.sizes, s)
		}
	}
	return f, nil
}

// of are the keys of a figure, in the order of their names.
func (f *figures) of(figure string) (keys []key) {
	for k := range f.values {
		if k.figure == figure {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b key) int { return bytes.Compare([]byte(a.String()), []byte(b.String())) })
	return keys
}

// String is the name of a line.
func (k key) String() string {
	if k.component == "both" || k.component == "" {
		return k.plane
	}
	return k.component + ", " + k.plane
}

// fact is what the file says of the run; it is an error if it says nothing.
func (f *figures) fact(key string) (string, error) {
	for _, fact := range f.facts {
		if fact.Key == key {
			return fact.Value, nil
		}
	}
	return "", fmt.Errorf("the file has no comment %q", key)
}

// ratio has two digits after the point, or two that are not zero.
func ratio(a, b float64) string {
	if r := a / b; r < 0.01 {
		return strconv.FormatFloat(r, 'g', 2, 64)
	}
	return strconv.FormatFloat(a/b, 'f', 2, 64)
}

// at is a value; it is an error if it was not measured.
func (f *figures) at(plane, component, figure string, volumes int) (float64, error) {
	value, ok := f.values[key{plane, component, figure}][volumes]
	if !ok {
		return 0, fmt.Errorf("%s of the %s of %s at %d volumes was not measured", figure, component, plane, volumes)
	}
	return value, nil
}

// next is an estimate for ten times the largest size: the line through the two largest.
func (f *figures) next(plane, component, figure string) (float64, error) {
	if len(f.sizes) < 2 {
		return 0, fmt.Errorf("an estimate takes two sizes")
	}
	x1, x2 := f.sizes[len(f.sizes)-2].Volumes, f.sizes[len(f.sizes)-1].Volumes
	y1, err := f.at(plane, component, figure, x1)
	if err != nil {
		return 0, err
	}
	y2, err := f.at(plane, component, figure, x2)
	return y2 + (y2-y1)/float64(x2-x1)*float64(9*x2), err
}

// table has a row for each line of a figure.
func (f *figures) table(figure string) string {
	var out bytes.Buffer
	fmt.Fprintf(&out, "| %s, %s |", figure, f.units[figure])
	for _, s := range f.sizes {
		fmt.Fprintf(&out, " %d |", s.Volumes)
	}
	fmt.Fprintf(&out, "\n|---|%s\n", string(bytes.Repeat([]byte("--:|"), len(f.sizes))))
	for _, k := range f.of(figure) {
		fmt.Fprintf(&out, "| %s |", k)
		for _, s := range f.sizes {
			if v, ok := f.values[k][s.Volumes]; ok {
				fmt.Fprintf(&out, " %s |", short(v))
			} else {
				out.WriteString(" |")
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// short has three digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// colors are those of upstream, belay and belay with another setting, for one component and the other.
var colors = map[string]color.Color{
	"upstream": color.RGBA{0xd9, 0x5f, 0x02, 0xff}, "belay": color.RGBA{0x1b, 0x7f, 0x5c, 0xff}, "belay, GOGC=100": color.RGBA{0x75, 0x70, 0xb3, 0xff},
	"client": color.RGBA{0x66, 0x66, 0x66, 0xff},
}

func (f *figures) draw(file, figure string) error {
	p := plot.New()
	p.Title.Text = figure
	p.X.Label.Text, p.Y.Label.Text = "attached volumes", f.units[figure]
	p.Legend.Top, p.Legend.Left = true, true
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	for _, k := range f.of(figure) {
		var points plotter.XYs
		for _, volumes := range slices.Sorted(maps.Keys(f.values[k])) {
			points = append(points, plotter.XY{X: float64(volumes), Y: f.values[k][volumes]})
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("%s: %w", figure, err)
		}
		line.Color, dots.Color, dots.Shape = colors[k.plane], colors[k.plane], draw.CircleGlyph{}
		line.Width = vg.Points(1.5)
		if k.component == "attacher" {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(line, dots)
		p.Legend.Add(k.String(), line, dots)
	}
	canvas := vgsvg.New(15*vg.Centimeter, 8*vg.Centimeter)
	p.Draw(draw.New(canvas))
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(out)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}
