package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/picture"
)

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

// read reads what `belay-lab bench scale` wrote.
func read(file string) (*figures, error) {
	in, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the figures: %w", err)
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

// keys are all, in the order of their figures and names.
func (f *figures) keys() []key {
	return slices.SortedFunc(maps.Keys(f.values), func(a, b key) int {
		return cmp.Or(strings.Compare(a.figure, b.figure), strings.Compare(a.String(), b.String()))
	})
}

// of are the keys of a figure, in the order of their names.
func (f *figures) of(figure string) []key {
	return slices.DeleteFunc(f.keys(), func(k key) bool { return k.figure != figure })
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
		fmt.Fprintf(&out, " %s |", picture.Number(float64(s.Volumes)))
	}
	fmt.Fprintf(&out, "\n|---|%s\n", string(bytes.Repeat([]byte("--:|"), len(f.sizes))))
	for _, k := range f.of(figure) {
		fmt.Fprintf(&out, "| %s |", k)
		for _, s := range f.sizes {
			if v, ok := f.values[k][s.Volumes]; ok {
				fmt.Fprintf(&out, " %s |", picture.Number(v))
			} else {
				out.WriteString(" |")
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// colors are those of upstream, belay and belay with another setting, and of a client for comparison.
var colors = map[string]string{
	planeUpstream: picture.Orange, planeBelay: picture.Green, bench.PlaneBelayGC: picture.Purple, "client": picture.Gray,
}

// plot draws a figure over the number of volumes.
func (f *figures) plot(w io.Writer, figure string) error {
	plot := picture.Plot{Title: figure + ", " + f.units[figure], X: "attached volumes (logarithmic axis)"}
	for _, s := range f.sizes {
		plot.Marks = append(plot.Marks, float64(s.Volumes))
	}
	for _, k := range f.of(figure) {
		line := picture.Series{Name: k.String(), Color: colors[k.plane], Dashed: k.component == "attacher"}
		for _, volumes := range slices.Sorted(maps.Keys(f.values[k])) {
			line.X, line.Y = append(line.X, float64(volumes)), append(line.Y, f.values[k][volumes])
		}
		plot.Lines = append(plot.Lines, line)
	}
	return plot.Draw(w)
}
