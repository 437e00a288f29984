package field

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// widths are the columns of the terminals on which questions are asked.
var widths = []int{80, 200}

// Answer is what the plugin printed to a question.
type Answer struct {
	// Question is the command as a person types it.
	Question string
	// Text is what was printed, with times that are the same in each run.
	Text string
	// Status is the exit status.
	Status int
}

func (a Answer) String() string {
	return fmt.Sprintf("$ %s\n%s[exit status %d]\n", a.Question, a.Text, a.Status)
}

// Ask runs the plugin, a path, on a terminal of a width.
func (r *Rig) Ask(ctx context.Context, plugin string, width int, args ...string) (Answer, error) {
	command := exec.CommandContext(ctx, plugin, args...)
	command.Env = r.environment()
	var warnings bytes.Buffer
	command.Stderr = &warnings
	printed, err := onTerminal(command, width)
	a := Answer{Question: "kubectl belay " + strings.Join(args, " "), Text: r.normalize(printed + warnings.String()), Status: command.ProcessState.ExitCode()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return a, fmt.Errorf("running %s: %w", a.Question, err)
	}
	return a, nil
}

// environment is that of the plugin.
func (r *Rig) environment() []string {
	return append(os.Environ(), "KUBECONFIG="+r.kubeconfig, "NO_COLOR=1", "TERM=xterm", "LC_ALL=C.UTF-8")
}

// AskAll asks one question after another.
func (r *Rig) AskAll(ctx context.Context, plugin string, width int, questions [][]string) ([]Answer, error) {
	var all []Answer
	for _, q := range questions {
		a, err := r.Ask(ctx, plugin, width, q...)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

var (
	stamps = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	uids   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	// What was made in the first minute and a half is as old as that.
	sinceMade = regexp.MustCompile(`\b1[01]m(\d\ds)?\b`)
)

// day is when all answers are given, in the stored ones.
var day = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

// normalize replaces what differs between two runs by something of the same length. What the files say keeps its time.
func (r *Rig) normalize(printed string) string {
	printed = stamps.ReplaceAllStringFunc(printed, func(stamp string) string {
		at, err := time.Parse(time.RFC3339, stamp)
		if err != nil {
			return stamp
		}
		since := at.Sub(r.maker.began)
		if 0 < since && since < later {
			since = 0 // when it was made
		}
		return day.Add(since - later).Format(time.RFC3339)
	})
	printed = uids.ReplaceAllString(printed, "00000000-0000-0000-0000-000000000000")
	lines := strings.Split(sinceMade.ReplaceAllString(printed, "11m"), "\n")
	for from := 0; from < len(lines); from++ {
		to := from
		for to < len(lines) && strings.HasPrefix(lines[to], "11m ") {
			to++
		}
		slices.Sort(lines[from:to]) // rows of a table, longest first: what was made at the same time comes in any order
		from = to
	}
	return strings.Join(lines, "\n")
}
