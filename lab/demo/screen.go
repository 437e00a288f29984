package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/timeline"
)

// screen prints results: text that ends with what the moves came to, or JSON.
type screen struct {
	out io.Writer
	// details receives the charts and the answers of kubectl belay: out, or a file.
	details io.Writer
	// file is where the details are; empty if they are on the screen.
	file     string
	json     bool
	style    timeline.Style
	notShown []NotShown
}

// detailsFile is where the details of a lab's last run are. The next run overwrites it.
func detailsFile(lab string) (string, error) {
	cache, err := cluster.CacheDir()
	return filepath.Join(cache, "demo", lab+".txt"), err
}

// newScreen returns what a run of the demo prints to. Details that are not printed go to a file.
func (o options) newScreen(out io.Writer) (*screen, error) {
	s := &screen{out: out, details: out, json: o.output == "json"}
	if s.json || o.verbose {
		s.style = timeline.StyleFor(os.Stdout)
		return s, nil
	}
	name, err := detailsFile(o.name)
	s.details, s.file = &lateFile{name: name}, name
	return s, err
}

// written is the file of the details once it has some, else empty.
func (s *screen) written() string {
	if file, ok := s.details.(*lateFile); ok && file.open != nil {
		return file.name
	}
	return ""
}

// close closes the file of the details.
func (s *screen) close() error {
	if file, ok := s.details.(*lateFile); ok && file.open != nil {
		if err := file.open.Close(); err != nil {
			return fmt.Errorf("close the file of the demo's details: %w", err)
		}
	}
	return nil
}

// lateFile is a file that is made, in place of that of the run before, by the first write: a run that does not start leaves it alone.
type lateFile struct {
	name string
	open *os.File
}

func (f *lateFile) Write(p []byte) (int, error) {
	if f.open == nil {
		if err := os.MkdirAll(filepath.Dir(f.name), 0o755); err != nil {
			return 0, fmt.Errorf("make the folder of the demo's details: %w", err)
		}
		file, err := os.Create(f.name)
		if err != nil {
			return 0, fmt.Errorf("make the file of the demo's details: %w", err)
		}
		f.open = file
	}
	n, err := f.open.Write(p)
	if err != nil {
		return n, fmt.Errorf("write the demo's details: %w", err)
	}
	return n, nil
}

// move writes the details of one step at once.
func (s *screen) move(plane string, step Step) error {
	if s.json {
		return nil
	}
	if step.Move != nil {
		if _, err := fmt.Fprintf(s.details, "\n%s's plane, ", plane); err != nil {
			return err
		}
		return timeline.Chart(s.details, step.Move, s.style)
	}
	_, err := fmt.Fprintf(s.details, "\n%s's plane, move 2, a second user: %s on %s got the event\n  %s: %s\n",
		plane, step.Refused.Pod, step.Refused.Node, step.Refused.Reason, step.Refused.Message)
	return err
}

// report is the JSON output.
type report struct {
	Results    []*Result            `json:"results"`
	Comparison *timeline.Comparison `json:"comparison,omitempty"`
	NotShown   []NotShown           `json:"notShown,omitempty"`
	Seconds    float64              `json:"seconds"`
}

// end prints the result: what the moves came to, what was left out, and last whether all records are in place.
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
		return encoder.Encode(report{Results: results, Comparison: comparison, NotShown: s.notShown, Seconds: took.Seconds()})
	}
	if err := s.answers(results); err != nil {
		return err
	}
	for _, r := range results {
		if err := r.write(s.out); err != nil {
			return err
		}
	}
	if comparison != nil {
		if err := writeFelt(s.out, results[0], results[1]); err != nil {
			return err
		}
		if err := comparison.Write(s.out); err != nil {
			return err
		}
	}
	return s.last(results)
}

// last writes what holds for the whole run, and last the lines on the records.
func (s *screen) last(results []*Result) error {
	if _, err := fmt.Fprintf(s.out, "\n%s\n", shortened(results)); err != nil {
		return err
	}
	if s.file != "" {
		if _, err := fmt.Fprintf(s.out, "Each step of the moves, and what kubectl belay says of them: %s (or --verbose).\n", s.file); err != nil {
			return err
		}
	}
	if len(s.notShown) > 0 {
		if _, err := fmt.Fprintln(s.out); err != nil {
			return err
		}
		if err := writeNotShown(s.out, s.notShown); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(s.out); err != nil {
		return err
	}
	for _, r := range results {
		_, err := fmt.Fprintf(s.out, "%s's plane on %s nodes: all %d acknowledged records verified (%d in place, chain intact), %d forbidden writes, %.0f s\n",
			r.Plane, r.NodeKind, r.Verified.Acknowledged, r.Verified.Count, r.Violations, r.Seconds)
		if err != nil {
			return err
		}
	}
	return nil
}

// answers writes what kubectl belay said of the moves of the first run.
func (s *screen) answers(results []*Result) error {
	for _, r := range results[:min(len(results), 1)] {
		for _, a := range r.Answers {
			if _, err := fmt.Fprintf(s.details, "\n$ %s\n%s", a.Command, a.Output); err != nil {
				return err
			}
		}
	}
	return nil
}
