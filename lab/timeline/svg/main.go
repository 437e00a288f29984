// Command svg draws a move of `belay-lab demo -o json` as an SVG picture: it reads the JSON on standard input and writes
// the picture to standard output. `make demo-svg` runs it.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"belay.dev/belay/lab/timeline"
)

func main() {
	title := flag.String("move", "move 1, drain", "draw the first move whose title begins with `TITLE`")
	flag.Parse()
	if err := draw(os.Stdin, os.Stdout, *title); err != nil {
		fmt.Fprintln(os.Stderr, "svg:", err)
		os.Exit(1)
	}
}

func draw(in io.Reader, out io.Writer, title string) error {
	var report struct {
		Results []struct {
			Steps []struct {
				Move *timeline.Move `json:"move"`
			} `json:"steps"`
		} `json:"results"`
	}
	if err := json.NewDecoder(in).Decode(&report); err != nil {
		return fmt.Errorf("read the demo's report: %w", err)
	}
	for _, result := range report.Results {
		for _, step := range result.Steps {
			if step.Move != nil && strings.HasPrefix(step.Move.Title, title) {
				return timeline.SVG(out, step.Move)
			}
		}
	}
	return fmt.Errorf("draw a move: the report has none whose title begins with %q", title)
}
