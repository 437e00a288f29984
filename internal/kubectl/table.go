package kubectl

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/cli-runtime/pkg/printers"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/printable"
)

// printList prints an answer as a document, its names, or a table.
func (o output) printList(out io.Writer, answer any, names []string, table func() error) error {
	if o != formatName {
		if o == formatJSON || o == formatYAML {
			runtime.GC() // the snapshot is no longer needed, and the document needs nearly as much
		}
		return o.print(out, answer, table)
	}
	for _, n := range names {
		if _, err := fmt.Fprintln(out, printable.Line(n)); err != nil {
			return err
		}
	}
	return nil
}

// nameOf is an object as kubectl -o name prints it.
func nameOf(r diagnosis.Ref) string {
	kind := map[diagnosis.Resource]string{
		diagnosis.Pods: "pod", diagnosis.Claims: "persistentvolumeclaim", diagnosis.Volumes: "persistentvolume", diagnosis.Nodes: "node",
		diagnosis.Attachments: "volumeattachment.storage.k8s.io", diagnosis.StatefulSets: "statefulset.apps",
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
		if cells[i] = printable.Line(c); c == "" {
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
