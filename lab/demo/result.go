package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
)

// longest is how many waits of a move the result names.
const longest = 3

// write prints the outcomes of a run as a table, and the event of the second user below it.
func (r *Result) write(w io.Writer) error {
	rows := &strings.Builder{}
	table := tabwriter.NewWriter(rows, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "WHAT HAPPENED\tWHAT THE USER SAW\tWAITED LONGEST FOR\tCONTROLLER AND ATTACHER")
	for _, o := range r.Outcomes {
		plane := "-"
		if o.PlaneSeconds > 0 {
			plane = seconds(o.PlaneSeconds)
		}
		waits := o.waited()
		_, _ = fmt.Fprintf(table, "%s\t%s after %s\t%s\t%s\n", o.what(), o.Saw, seconds(o.Seconds), waits[0], plane)
		for _, wait := range waits[1:] {
			_, _ = fmt.Fprintf(table, "\t\t%s\t\n", wait)
		}
	}
	_ = table.Flush() // to a strings.Builder
	text := &strings.Builder{}
	fmt.Fprintf(text, "\nRESULT with %s's plane on %s nodes\n\n", r.Plane, r.NodeKind)
	for row := range strings.Lines(rows.String()) {
		fmt.Fprintln(text, strings.TrimRight(row, " \n"))
	}
	for _, step := range r.Steps {
		if step.Refused != nil {
			fmt.Fprintf(text, "\nThe event of the second pod: %s: %s\n", step.Refused.Reason, step.Refused.Message)
		}
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return fmt.Errorf("write the result of %s's plane: %w", r.Plane, err)
	}
	return nil
}

func (o Outcome) what() string {
	if o.Moves > 1 {
		return fmt.Sprintf("%s (median of %d)", o.Happened, o.Moves)
	}
	return o.Happened
}

// waited names the longest waits, or what a second user waits for.
func (o Outcome) waited() []string {
	if len(o.Waits) == 0 {
		return []string{o.Holder}
	}
	var all []string
	for _, wait := range o.Waits[:min(len(o.Waits), longest)] {
		all = append(all, wait.For+" "+seconds(wait.Seconds))
	}
	return all
}

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.1f s", s)
}

// writeFelt compares what a user of each plane saw.
func writeFelt(w io.Writer, belay, upstream *Result) error {
	text := &strings.Builder{}
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nWHAT A USER FEELS\tUPSTREAM\tBELAY")
	for _, ours := range belay.Outcomes {
		for _, theirs := range upstream.Outcomes {
			if ours.Happened == theirs.Happened {
				_, _ = fmt.Fprintf(table, "%s: %s after\t%s\t%s\n", ours.what(), ours.Saw, seconds(theirs.Seconds), seconds(ours.Seconds))
			}
		}
	}
	_ = table.Flush() // to a strings.Builder
	if belay.Recovery != "" {
		text.WriteString("On upstream's plane no recovery runs: the demo sets the out-of-service taint as soon as the node is NotReady, sooner than a person would.\n")
	}
	if _, err := io.WriteString(w, text.String()+"\n"); err != nil {
		return fmt.Errorf("write what a user feels: %w", err)
	}
	return nil
}

// shortened names the waits that the demo shortens, with their defaults.
func shortened(results []*Result) string {
	notReady := fmt.Sprintf("a silent node becomes NotReady after %.0f s (default: 50 s)", nodeMonitorGrace.Seconds())
	line := "One wait is shortened: " + notReady + "."
	if results[0].NodeKind == cluster.NodeKindKubelet {
		line = fmt.Sprintf("Two waits are shortened: kubelets publish their status every %.0f s (default: 10 s), %s.\n"+
			"With default kubelets a drain takes longer: docs/performance.md#the-kubelets-status-tick.", StatusTick.Seconds(), notReady)
	}
	if results[0].Recovery != "" {
		line += fmt.Sprintf("\nRecovery runs with the profile %s: it suspects a node after %.0f s of silence (profile %s: %.0f s).",
			fencing.Fast.Name, fencing.Fast.Silence.Seconds(), fencing.Default.Name, fencing.Default.Silence.Seconds())
	}
	return line
}
