package timeline

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Comparison sets the figures of the same moves through two planes side by side.
type Comparison struct {
	Rows []ComparisonRow `json:"rows"`
}

// ComparisonRow is one figure of one kind of move: the medians of as many moves as
// were made. Ratio is upstream's time over belay's.
type ComparisonRow struct {
	Move     string  `json:"move"`
	Figure   string  `json:"figure"`
	Upstream float64 `json:"upstreamMilliseconds"`
	Belay    float64 `json:"belayMilliseconds"`
	Ratio    float64 `json:"ratio"`
	// Least is upstream's quickest move over belay's slowest: what no pair fell below.
	Least float64 `json:"leastRatio"`
	// Moves is how many were made through each plane.
	Moves int `json:"moves"`
}

// Compare pairs moves by their titles and figures by their names. Figures that
// only one plane has are left out.
func Compare(belay, upstream []*Move) Comparison {
	var c Comparison
	mine, theirs := gather(belay), gather(upstream)
	for _, key := range mine.order {
		ours, other := mine.took[key], theirs.took[key]
		n := min(len(ours), len(other))
		if n == 0 {
			continue
		}
		mid, ref := Median(ours), Median(other)
		c.Rows = append(c.Rows, ComparisonRow{
			Move: key.title, Figure: key.figure, Upstream: f64(ref), Belay: f64(mid), Moves: n,
			Ratio: float64(ref) / float64(mid), Least: float64(slices.Min(other)) / float64(slices.Max(ours)),
		})
	}
	return c
}

// gathered are the times of all moves by title and figure, in the order of the moves.
type gathered struct {
	order []figureOf
	took  map[figureOf][]time.Duration
}

type figureOf struct{ title, figure string }

func gather(moves []*Move) gathered {
	g := gathered{took: map[figureOf][]time.Duration{}}
	for _, m := range moves {
		for _, f := range m.Figures() {
			if f.Took <= 0 {
				continue // detached before the pod object was gone: no ratio
			}
			key := figureOf{m.Title, f.Name}
			if g.took[key] == nil {
				g.order = append(g.order, key)
			}
			g.took[key] = append(g.took[key], f.Took)
		}
	}
	return g
}

// Middle is the one in the middle of what is sorted, or the two of an even number.
func Middle[T any](sorted []T) []T {
	if len(sorted) == 0 {
		return nil
	}
	return sorted[(len(sorted)-1)/2 : len(sorted)/2+1]
}

// Median is the middle one; of an even number the mean of the two in the middle. 0 for none.
func Median[T time.Duration | float64](all []T) T {
	var sum T
	middle := Middle(slices.Sorted(slices.Values(all)))
	for _, each := range middle {
		sum += each
	}
	return sum / T(max(len(middle), 1))
}

// Write prints the comparison as a table.
func (c Comparison) Write(w io.Writer) error {
	out := &strings.Builder{}
	fmt.Fprintf(out, "%-28s %-32s %12s %12s %8s %8s\n", "move", "figure", "upstream", "belay", "ratio", "least")
	last := ""
	for _, r := range c.Rows {
		move := r.Move
		if r.Moves > 1 {
			move = fmt.Sprintf("%s, median of %d", r.Move, r.Moves)
		}
		if move == last {
			move = ""
		} else {
			last = move
		}
		fmt.Fprintf(out, "%-28s %-32s %9.1f ms %9.1f ms %7.1fx %7.1fx\n", move, r.Figure, r.Upstream, r.Belay, r.Ratio, r.Least)
	}
	fmt.Fprintln(out, "The least ratio is upstream's quickest move over belay's slowest. A drained pod is bound before its\n"+
		"old node has let the volume go: there the time after that, \"last in use -> reported on next\", is the\n"+
		"plane's own.")
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write the comparison: %w", err)
	}
	return nil
}
