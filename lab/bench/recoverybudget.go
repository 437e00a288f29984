package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"belay.dev/belay/lab/timeline"
)

// moment is something that happened in a run; At is zero if it was not seen.
type moment struct {
	Name string    `json:"name"`
	At   time.Time `json:"at,omitzero"`
}

// Hop is a part of a run's time: from the latest of the moments before it to its own.
type Hop struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// budget divides the time from start to the last moment among the moments. One that came before its turn took no time, and the sum of all
// is the time of the whole. One that was not seen is left out: its time is part of the next.
func budget(start time.Time, moments []moment) []Hop {
	var hops []Hop
	before := start
	for _, m := range moments {
		if m.At.IsZero() {
			continue
		}
		took := max(m.At.Sub(before), 0)
		hops = append(hops, Hop{Name: m.Name, Seconds: took.Seconds()})
		before = before.Add(took)
	}
	return hops
}

// RecoveryRun is one fault.
type RecoveryRun struct {
	Fault string    `json:"fault"`
	From  string    `json:"from"`
	To    string    `json:"to,omitempty"`
	Start time.Time `json:"start"`
	// Seconds from the fault to the first record that the pod wrote elsewhere; Hops are its parts.
	Seconds float64 `json:"seconds,omitempty"`
	Hops    []Hop   `json:"hops,omitempty"`
	// Acknowledged records, and those that were found after it.
	Acknowledged int64 `json:"acknowledged"`
	Found        int64 `json:"found"`
	// Failure is why the run failed; empty if it did not.
	Failure string `json:"failure,omitempty"`
}

// Spread is the duration of something over all runs, in seconds.
type Spread struct {
	Name string `json:"name"`
	// Of is in how many runs it was seen.
	Of  int     `json:"of"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	Max float64 `json:"max"`
}

// spreadOf summarizes seconds; P90 is the smallest that at least nine tenths do not exceed.
func spreadOf(name string, all []float64) Spread {
	if len(all) == 0 {
		return Spread{Name: name}
	}
	sorted := slices.Sorted(slices.Values(all))
	ninth := int(math.Ceil(0.9*float64(len(sorted)))) - 1
	return Spread{Name: name, Of: len(sorted), P50: timeline.Median(sorted), P90: sorted[ninth], Max: sorted[len(sorted)-1]}
}

// RecoverySeries are the runs of one fault in one lab.
type RecoverySeries struct {
	Nodes string `json:"nodes"`
	// Plane is whose attach/detach controller ran.
	Plane string `json:"plane"`
	// Profile of recovery; empty without recovery.
	Profile string `json:"profile,omitempty"`
	Fault   string `json:"fault"`
	// Settings say what in the lab is not as shipped, and what the nodes are set to.
	Settings []string      `json:"settings"`
	Runs     []RecoveryRun `json:"runs"`
	Hops     []Spread      `json:"hops"`
	Total    Spread        `json:"total"`
	Failures int           `json:"failures"`
	// Target for the median; none without recovery.
	Target *Target `json:"target,omitempty"`
}

// summarize fills in what follows from the runs. A run that failed counts as a failure, and in no time. limit is the median's, zero for none.
func (s *RecoverySeries) summarize(limit time.Duration) {
	var totals []float64
	var names []string
	took := map[string][]float64{}
	for _, run := range s.Runs {
		if run.Failure != "" {
			s.Failures++
			continue
		}
		totals = append(totals, run.Seconds)
		for _, h := range run.Hops {
			if took[h.Name] == nil {
				names = append(names, h.Name)
			}
			took[h.Name] = append(took[h.Name], h.Seconds)
		}
	}
	for _, name := range names {
		s.Hops = append(s.Hops, spreadOf(name, took[name]))
	}
	s.Total = spreadOf("fault -> writing elsewhere", totals)
	if limit > 0 {
		text := fmt.Sprintf("p50 <= %g s, no failure", limit.Seconds())
		s.Target = &Target{Text: text, Limit: limit.Seconds(), Met: len(totals) > 0 && s.Failures == 0 && s.Total.P50 <= limit.Seconds()}
	}
}

func (s *RecoverySeries) title() string {
	if s.Profile == "" {
		return fmt.Sprintf("%s, %s nodes, without recovery", s.Fault, s.Nodes)
	}
	return fmt.Sprintf("%s, %s nodes, profile %s, attach/detach of %s", s.Fault, s.Nodes, s.Profile, s.Plane)
}

func (s *RecoverySeries) write(out io.Writer) error {
	var text strings.Builder
	verdict := ""
	if s.Target != nil {
		verdict = "; " + s.Target.Text + ": MISSED"
		if s.Target.Met {
			verdict = "; " + s.Target.Text + ": pass"
		}
	}
	fmt.Fprintf(&text, "%s: %d runs, %d failed%s\n", s.title(), len(s.Runs), s.Failures, verdict)
	for _, setting := range s.Settings {
		fmt.Fprintf(&text, "  with %s\n", setting)
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { _, _ = fmt.Fprintln(table, "  "+strings.Join(cells, "\t")) } // Flush reports errors
	row("hop", "p50", "p90", "max", "runs")
	for _, sp := range append(slices.Clone(s.Hops), s.Total) {
		row(sp.Name, inSeconds(sp.P50), inSeconds(sp.P90), inSeconds(sp.Max), strconv.Itoa(sp.Of))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("align a table: %w", err)
	}
	for i, run := range s.Runs {
		if run.Failure != "" {
			fmt.Fprintf(&text, "  run %d, %s: %s\n", i+1, run.From, run.Failure)
		}
	}
	_, err := io.WriteString(out, text.String()+"\n")
	return err
}

func inSeconds(v float64) string { return fmt.Sprintf("%.2f s", v) }
