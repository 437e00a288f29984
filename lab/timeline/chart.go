package timeline

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Style says how a chart is drawn. The zero value is plain ASCII, 100 columns.
type Style struct {
	// Width in columns; 0 means 100.
	Width int
	// Color: ANSI colours, one per owner.
	Color bool
	// Unicode: block characters instead of ASCII.
	Unicode bool
}

// StyleFor finds out what a file can show: colours and its width on a terminal
// (NO_COLOR is honoured), block characters where the locale is UTF-8.
func StyleFor(f *os.File) Style {
	var s Style
	if !term.IsTerminal(int(f.Fd())) {
		return s
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil {
		s.Width = width
	}
	s.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	s.Unicode = utf8Locale(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	return s
}

// utf8Locale: the first of the variables that is set decides, as in setlocale(3).
func utf8Locale(values ...string) bool {
	for _, v := range values {
		if v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

const (
	nameWidth  = 24
	ownerWidth = 15
	// tookWidth holds "1234567.8 ms" and a space.
	tookWidth   = 12
	minBarWidth = 16
	maxBarWidth = 120
)

// ownerColors are SGR codes.
var ownerColors = map[string]string{
	"controller": "32", "attacher": "36", "driver": "33", "node": "35", "scheduler": "34",
}

// Chart draws a move: one line per step with its owner, its own time and a bar on
// a common time axis. In a bar "." is waiting for the call, "#" the step at work.
func Chart(w io.Writer, m *Move, style Style) error {
	out := &strings.Builder{}
	if style.Width == 0 {
		style.Width = 100
	}
	bar := min(max(style.Width-nameWidth-ownerWidth-tookWidth-3, minBarWidth), maxBarWidth)
	fmt.Fprintf(out, "%s: volume of %s, %s, %s\n", m.Title, m.Volume.Claim, m.route(), millis(m.Total()))
	fmt.Fprintf(out, "  %-*s %-*s %*s  %s\n", nameWidth-2, "step", ownerWidth, "owner", tookWidth, "took", axis(bar, m.Total()))
	for _, step := range m.Steps {
		took := "-"
		if step.Seen {
			took = millis(step.Took())
		}
		line := drawBar(step, m.Total(), bar, style)
		if step.Calls > 1 {
			line += fmt.Sprintf(" %d calls", step.Calls)
		}
		text := fmt.Sprintf("  %-*s %-*s %*s  %s", nameWidth-2, step.Name, ownerWidth, step.Owner, tookWidth, took, line)
		fmt.Fprintln(out, strings.TrimRight(text, " "))
	}
	for _, f := range m.Figures() {
		fmt.Fprintf(out, "  = %-*s %*s\n", nameWidth+ownerWidth-3, f.Name, tookWidth, millis(f.Took))
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write the chart of %s: %w", m.Title, err)
	}
	return nil
}

// route names the nodes that the volume moves between.
func (m *Move) route() string {
	if m.From == "" {
		return "to " + m.To
	}
	return m.From + " -> " + m.To
}

// axis marks the beginning and the end of the move over the bars.
func axis(width int, total time.Duration) string {
	end := millis(total)
	return "0" + strings.Repeat(" ", max(width-1-len(end), 1)) + end
}

// drawBar places a step on the axis; a step that was seen has at least one mark.
func drawBar(step Step, total time.Duration, width int, style Style) string {
	if !step.Seen || total <= 0 {
		return ""
	}
	column := func(at time.Duration) int {
		return min(int(at*time.Duration(width)/total), width)
	}
	began, worked, ended := column(step.Began), column(step.Worked), column(step.Ended)
	if ended == worked { // shorter than a column
		worked = min(worked, width-1)
		ended = worked + 1
	}
	began = min(began, worked)
	wait, work := ".", "#"
	if style.Unicode {
		wait, work = "░", "█"
	}
	bar := strings.Repeat(wait, worked-began) + strings.Repeat(work, ended-worked)
	if code := ownerColors[step.Owner]; style.Color && code != "" {
		bar = "\x1b[" + code + "m" + bar + "\x1b[0m"
	}
	return strings.Repeat(" ", began) + bar
}

// millis writes a time in milliseconds with one digit: the recorder's own error is
// of that size.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
