package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"belay.dev/belay/lab/timeline"
)

// screen prints results: text as they come, or JSON at the end.
type screen struct {
	out   io.Writer
	json  bool
	style timeline.Style
}

// move prints one step at once.
func (s *screen) move(plane string, step Step) error {
	if s.json {
		return nil
	}
	if step.Move != nil {
		if _, err := fmt.Fprintf(s.out, "\n%s's plane, ", plane); err != nil {
			return err
		}
		return timeline.Chart(s.out, step.Move, s.style)
	}
	_, err := fmt.Fprintf(s.out, "\n%s's plane, move 2, a second user: %s on %s got the event\n  %s: %s\n",
		plane, step.Refused.Pod, step.Refused.Node, step.Refused.Reason, step.Refused.Message)
	return err
}

// report is the JSON output.
type report struct {
	Results    []*Result            `json:"results"`
	Comparison *timeline.Comparison `json:"comparison,omitempty"`
	Seconds    float64              `json:"seconds"`
}

// end prints the comparison, if there are two results, and the last lines.
func (s *screen) end(results []*Result, took time.Duration) error {
	var comparison *timeline.Comparison
	if len(results) > 1 {
		belay, upstream := results[0], results[1]
		c := timeline.Compare(belay.Moves(), upstream.Moves())
		comparison = &c
	}
	if s.json {
		encoder := json.NewEncoder(s.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report{Results: results, Comparison: comparison, Seconds: took.Seconds()})
	}
	if comparison != nil {
		if _, err := fmt.Fprintln(s.out); err != nil {
			return err
		}
		if err := comparison.Write(s.out); err != nil {
			return err
		}
	}
	for _, r := range results {
		_, err := fmt.Fprintf(s.out, "\n%s's plane on %s nodes: all %d acknowledged records verified (%d in place, chain intact), %d forbidden writes, %.0f s\n",
			r.Plane, r.NodeKind, r.Verified.Acknowledged, r.Verified.Count, r.Violations, r.Seconds)
		if err != nil {
			return err
		}
	}
	return s.answers(results)
}

// answers prints what kubectl belay said of the moves of the first run.
func (s *screen) answers(results []*Result) error {
	for _, r := range results[:min(len(results), 1)] {
		for _, a := range r.Answers {
			if _, err := fmt.Fprintf(s.out, "\n$ %s\n%s", a.Command, a.Output); err != nil {
				return err
			}
		}
	}
	return nil
}
