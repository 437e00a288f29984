package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"belay.dev/belay/internal/usage"
)

// Part is what one part of the bench found.
type Part struct {
	Name string `json:"name"`
	// What was done, in a line.
	What    string    `json:"what"`
	Figures []*Figure `json:"figures"`
	// Seconds that the part took.
	Seconds float64 `json:"seconds"`
}

// Stamp says of a stored report when it was made, of which commit, and with which command line.
type Stamp struct {
	Date   string `json:"date"`
	Commit string `json:"commit"`
	// Flags that were given and that change what is measured, such as "--runs=8".
	Flags []string `json:"flags"`
}

func stampOf(flags *pflag.FlagSet) Stamp {
	stamp := Stamp{Date: time.Now().UTC().Format("2006-01-02 15:04 MST"), Commit: usage.Commit, Flags: []string{}}
	flags.Visit(func(f *pflag.Flag) {
		if slices.Contains([]string{"name", "output", "no-targets"}, f.Name) {
			return
		}
		value := f.Value.String()
		if list, is := f.Value.(pflag.SliceValue); is {
			value = strings.Join(list.GetSlice(), ",")
		}
		stamp.Flags = append(stamp.Flags, "--"+f.Name+"="+value)
	})
	return stamp
}

// Report is what the bench prints.
type Report struct {
	Stamp
	// Planes that were measured, in the order of the columns.
	Planes []string `json:"planes"`
	Parts  []Part   `json:"parts"`
	// Machine says on what it was measured.
	Machine string  `json:"machine"`
	Quick   bool    `json:"quick,omitempty"`
	Seconds float64 `json:"seconds"`
}

// missed lists the targets that were not met.
func (r *Report) missed() (missed []string, of int) {
	for _, part := range r.Parts {
		for _, figure := range part.Figures {
			for _, target := range figure.Targets {
				of++
				if !target.Met {
					missed = append(missed, fmt.Sprintf("%s: %s %s", part.Name, figure.Name, target.Text))
				}
			}
		}
	}
	return missed, of
}

func (r *Report) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// writeText prints a table per part.
func (r *Report) writeText(out io.Writer) error {
	for _, part := range r.Parts {
		if _, err := fmt.Fprintf(out, "%s: %s (%.0f s)\n", part.Name, part.What, part.Seconds); err != nil {
			return err
		}
		var aligned bytes.Buffer
		table := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
		line := func(cells ...string) { _, _ = fmt.Fprintln(table, "  "+strings.Join(cells, "\t")) } // Flush reports errors
		line(slices.Concat([]string{"figure"}, r.Planes, []string{"target", "is", ""})...)
		var parts strings.Builder
		for _, figure := range part.Figures {
			for _, cells := range figure.rows(r.Planes) {
				line(cells...)
			}
			parts.WriteString(figure.parts(r.Planes) + figure.spread(r.Planes))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for line := range strings.Lines(aligned.String() + parts.String()) {
			if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out); err != nil {
			return err
		}
	}
	size := ""
	if r.Quick {
		size = ", small sizes: not the figures that the project states"
	}
	_, err := fmt.Fprintf(out, "%s; %.0f s%s\n", r.Machine, r.Seconds, size)
	return err
}

// rows are a line for the figure and its first target, and one for each further target.
func (f *Figure) rows(planes []string) [][]string {
	first := []string{f.Name}
	for _, plane := range planes {
		value, ok := f.Value[plane]
		if !ok {
			first = append(first, "")
			continue
		}
		first = append(first, number(value)+" "+f.Unit)
	}
	rows := [][]string{first}
	for i, target := range f.Targets {
		verdict := "pass"
		if !target.Met {
			verdict = "MISSED"
		}
		if i > 0 {
			rows = append(rows, make([]string, len(first)))
		}
		rows[i] = append(rows[i], target.Text, target.Is, verdict)
	}
	return rows
}

// parts says in a line per plane what its value is made of.
func (f *Figure) parts(planes []string) string {
	var lines strings.Builder
	for _, plane := range planes {
		var words []string
		for _, right := range slices.Sorted(maps.Keys(f.Parts[plane])) {
			words = append(words, number(f.Parts[plane][right])+" "+right)
		}
		if len(words) > 0 {
			fmt.Fprintf(&lines, "    %s, %s: %s\n", f.Name, plane, strings.Join(words, ", "))
		}
	}
	return lines.String()
}

// spread says in a line how many samples each plane has, and the least and the greatest.
func (f *Figure) spread(planes []string) string {
	var words []string
	for _, plane := range planes {
		if all := f.Samples[plane]; f.Spread && len(all) > 0 {
			words = append(words, fmt.Sprintf("%s %s to %s (%d)", plane, number(slices.Min(all)), number(slices.Max(all)), len(all)))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return fmt.Sprintf("    %s, %s: %s\n", f.Name, f.Unit, strings.Join(words, ", "))
}

// number has as many digits as mean something.
func number(value float64) string {
	switch {
	case value == float64(int64(value)):
		return fmt.Sprintf("%d", int64(value))
	case value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}
