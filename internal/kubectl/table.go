package kubectl

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/usage"
)

// listOutput is the flag --output of commands that print tables.
type listOutput string

const (
	formatWide listOutput = "wide"
	formatName listOutput = "name"
)

var listFormats = []string{"json", "yaml", string(formatWide), string(formatName)}

// String returns the value.
func (o *listOutput) String() string { return string(*o) }

// Type is the name of the value in the help.
func (o *listOutput) Type() string { return "string" }

// Set checks the value.
func (o *listOutput) Set(value string) error {
	if !slices.Contains(listFormats, value) {
		return usage.Errorf("unknown format %q: use %s", value, strings.Join(listFormats, ", "))
	}
	*o = listOutput(value)
	return nil
}

func (o *listOutput) addTo(c *cobra.Command) {
	c.Flags().VarP(o, "output", "o", "output format: json, yaml, wide or name; a table by default. The schema is described in docs/kubectl-belay.md")
	// The flag was just added: it cannot be missing or have a completion.
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(listFormats, cobra.ShellCompDirectiveNoFileComp))
}

// print prints an answer as a document, its names, or a table.
func (o listOutput) print(out io.Writer, answer any, names []string, table func() error) error {
	if o != formatName {
		return output(strings.TrimSuffix(string(o), string(formatWide))).print(out, answer, table)
	}
	for _, n := range names {
		if _, err := fmt.Fprintln(out, n); err != nil {
			return err
		}
	}
	return nil
}

// nameOf is an object as kubectl -o name prints it.
func nameOf(r diagnosis.Ref) string {
	kind := map[diagnosis.Resource]string{
		diagnosis.Pods: "pod", diagnosis.Claims: "persistentvolumeclaim", diagnosis.Volumes: "persistentvolume", diagnosis.Nodes: "node",
		diagnosis.Attachments: "volumeattachment.storage.k8s.io",
	}[r.Resource]
	return kind + "/" + r.Name
}

// table is printed as kubectl prints tables. On a terminal it is made to fit.
type table struct {
	columns []string
	// flexible are the columns whose cells may be shortened.
	flexible []string
	rows     [][]string
	// overflow is a column that no terminal has the width for; "" for none.
	overflow string
	// painted is the color of a column's cell, by its text.
	painted map[string]func(text string) string
}

func (t *table) add(cells ...string) {
	for i, c := range cells {
		if cells[i] = printable(c); c == "" {
			cells[i] = "-"
		}
	}
	t.rows = append(t.rows, cells)
}

const (
	gap      = 3 // between columns, as kubectl's
	shortest = 12
)

// fit shortens the widest cells of flexible columns until the lines have the width, or all are short.
func (t *table) fit(width int) {
	widths := make([]int, len(t.columns))
	total := gap * (len(t.columns) - 1)
	for i, c := range t.columns {
		if widths[i] = len(c); c == t.overflow {
			widths[i] = math.MaxInt32
			continue
		}
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for ; total > width; total-- {
		widest := -1
		for i, c := range t.columns {
			if slices.Contains(t.flexible, c) && widths[i] > max(shortest, len(c)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return // it does not fit: whole names are of more use than a narrow table
		}
		widths[widest]--
	}
	for _, row := range t.rows {
		for i := range row {
			row[i] = shorten(row[i], widths[i])
		}
	}
}

// shorten leaves out the middle: names begin and end with what tells them apart.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	keep := width - 2
	return string(runes[:(keep+1)/2]) + ".." + string(runes[len(runes)-keep/2:])
}

func (t *table) print(out io.Writer, s style) error {
	if s.width > 0 {
		t.fit(s.width)
	}
	var text bytes.Buffer
	w := printers.GetNewTabWriter(&text)
	_, _ = fmt.Fprintln(w, strings.Join(t.columns, "\t"))
	for _, row := range t.rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	for i, line := range strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n") {
		line = strings.TrimRight(line, " ")
		if i > 0 {
			line = t.paint(line, t.rows[i-1])
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

// paint colors cells after the layout, which counts the bytes of colors.
func (t *table) paint(line string, row []string) string {
	for i, c := range t.columns {
		if color := t.painted[c]; color != nil {
			line = strings.Replace(line, row[i], color(row[i]), 1)
		}
	}
	return line
}
