package timeline

import (
	"fmt"
	"io"
	"strings"
)

// Comparison sets the figures of the same moves through two planes side by side.
type Comparison struct {
	Rows []ComparisonRow `json:"rows"`
}

// ComparisonRow is one figure of one move. Ratio is upstream's time over belay's.
type ComparisonRow struct {
	Move     string  `json:"move"`
	Figure   string  `json:"figure"`
	Upstream float64 `json:"upstreamMilliseconds"`
	Belay    float64 `json:"belayMilliseconds"`
	Ratio    float64 `json:"ratio"`
}

// Compare pairs moves by their titles and figures by their names. Figures that
// only one plane has are left out.
func Compare(belay, upstream []*Move) Comparison {
	var c Comparison
	for _, mine := range belay {
		for _, theirs := range upstream {
			if mine.Title != theirs.Title {
				continue
			}
			for _, f := range mine.Figures() {
				took, ok := theirs.Figure(f.Name)
				if !ok || f.Took <= 0 || took <= 0 {
					continue // detached before the pod object was gone: no ratio
				}
				c.Rows = append(c.Rows, ComparisonRow{
					Move: mine.Title, Figure: f.Name,
					Upstream: f64(took), Belay: f64(f.Took), Ratio: float64(took) / float64(f.Took),
				})
			}
		}
	}
	return c
}

// Write prints the comparison as a table.
func (c Comparison) Write(w io.Writer) error {
	out := &strings.Builder{}
	fmt.Fprintf(out, "%-28s %-32s %12s %12s %8s\n", "move", "figure", "upstream", "belay", "ratio")
	last := ""
	for _, r := range c.Rows {
		move := r.Move
		if move == last {
			move = ""
		}
		last = r.Move
		line := fmt.Sprintf("%-28s %-32s %9.1f ms %9.1f ms %7.1fx", move, r.Figure, r.Upstream, r.Belay, r.Ratio)
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	fmt.Fprintln(out, "A drained pod is bound before its old node has let the volume go: there the time after that,\n"+
		"\"last in use -> reported on next\", is the plane's own.")
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write the comparison: %w", err)
	}
	return nil
}
