package kubectl

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

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
	// whole is the column whose cells are typed after a command, and not shortened; "" for none. It stands at the end of the lines if a cell is too long for
	// the terminal.
	whole string
	// longest is the width of that column without such cells; 0 for one that has none.
	longest int
	// flexible are the columns whose cells may be shortened.
	flexible []string
	// spare are the columns that a narrow terminal may lack, the least important one first. Those without a cell go before them.
	spare []string
	rows  [][]string
	// overflow is a column that no terminal has the width for; "" for none.
	overflow string
	// painted is the color of a column's cell, by its text.
	painted map[string]func(text string) string
}

func (t *table) add(cells ...string) {
	for i, c := range cells {
		if cells[i] = printable.Line(c); c == "" {
			cells[i] = none
		}
	}
	t.rows = append(t.rows, cells)
}

const (
	gap      = 3 // between columns, as kubectl's
	shortest = 12
	readable = 20 // a name that is shorter than this by force says little
	none     = "-"
)

// fit makes the lines as wide as a terminal: it shortens names that stay readable, then leaves out columns, and then shortens what is left.
func (t *table) fit(width int) {
	t.moveLong(width)
	for !t.narrow(width, readable) {
		if !t.leaveOut() {
			_ = t.narrow(width, shortest) // if that is not enough, whole names are of more use than a narrow table
			break
		}
	}
}

// moveLong moves the column whose cells are not shortened to the end of the lines, if one of them takes more than half of a line: it then moves no other.
func (t *table) moveLong(width int) {
	at := slices.Index(t.columns, t.whole)
	if at < 0 {
		return
	}
	long, longest := false, len(t.whole)
	for _, row := range t.rows {
		n := utf8.RuneCountInString(row[at])
		if n > width/2 {
			long = true
		} else {
			longest = max(longest, n)
		}
	}
	if !long {
		return
	}
	t.longest = longest
	t.columns = append(slices.Delete(slices.Clone(t.columns), at, at+1), t.whole)
	for r, row := range t.rows {
		t.rows[r] = append(slices.Delete(slices.Clone(row), at, at+1), row[at])
	}
}

// withoutEmpty removes a column without a cell.
func (t *table) withoutEmpty(column string) {
	i := slices.Index(t.columns, column)
	if i < 0 || slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != none }) {
		return
	}
	t.columns = slices.Delete(slices.Clone(t.columns), i, i+1)
	for r := range t.rows {
		t.rows[r] = slices.Delete(t.rows[r], i, i+1)
	}
}

// leaveOut removes one spare column, one without a cell before all others; it is false if there is none.
func (t *table) leaveOut() bool {
	empty := func(c string) bool {
		i := slices.Index(t.columns, c)
		return !slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != none })
	}
	there := slices.DeleteFunc(slices.Clone(t.spare), func(c string) bool { return !slices.Contains(t.columns, c) })
	if len(there) == 0 {
		return false
	}
	out := there[max(slices.IndexFunc(there, empty), 0)]
	i := slices.Index(t.columns, out)
	t.columns = slices.Delete(slices.Clone(t.columns), i, i+1)
	for r := range t.rows {
		t.rows[r] = slices.Delete(t.rows[r], i, i+1)
	}
	return true
}

// narrow shortens the widest cells of flexible columns until the lines have the width, to no less than least; it is false, and changes nothing, if they
// cannot have it.
func (t *table) narrow(width, least int) bool {
	widths, total := t.widths(), gap*(len(t.columns)-1)
	for i, c := range t.columns {
		if c != "" && c == t.overflow {
			widths[i] = math.MaxInt32
			continue
		}
		total += widths[i]
	}
	for ; total > width; total-- {
		widest := -1
		for i, c := range t.columns {
			if slices.Contains(t.flexible, c) && widths[i] > max(least, len(c)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	for _, row := range t.rows {
		for i := range row {
			if t.columns[i] != t.whole {
				row[i] = shorten(row[i], widths[i])
			}
		}
	}
	return true
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
	widths := t.widths()
	for i, row := range append([][]string{t.columns}, t.rows...) {
		var line strings.Builder
		for c, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", max(0, widths[c]-utf8.RuneCountInString(cell))+gap))
		}
		text := strings.TrimRight(line.String(), " ")
		if i > 0 {
			text = t.paint(text, row)
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	return nil
}

// widths are those of the columns, in characters: a bar has more bytes.
func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if c != "" && c == t.whole && t.longest > 0 {
			widths[i] = t.longest
		}
	}
	return widths
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
