package preflight

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is what one check found.
type Result string

// The results.
const (
	// OK lets belay-controller start.
	OK Result = "ok"
	// Warning lets it start, and a person should look.
	Warning Result = "warning"
	// Refused says that it must not start.
	Refused Result = "refused"
	// Unknown says that the answer could not be had: it must not start.
	Unknown Result = "unknown"
)

// Check is one question and its answer.
type Check struct {
	Name    string `json:"name"`
	Result  Result `json:"result"`
	Message string `json:"message"`
	// Objects are what the message is about, "kind [namespace/]name: detail".
	Objects []string `json:"objects,omitempty"`
}

// Report is all checks.
type Report struct {
	// Ready tells whether belay-controller may start.
	Ready  bool    `json:"ready"`
	Checks []Check `json:"checks"`
}

func reportOf(checks []Check) Report {
	stops := func(c Check) bool { return c.Result == Refused || c.Result == Unknown }
	return Report{Ready: !slices.ContainsFunc(checks, stops), Checks: checks}
}

// objectsShown bounds the table; JSON has them all.
const objectsShown = 5

// Text writes a table.
func (r Report) Text(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "CHECK\tRESULT\tFOUND")
	for _, c := range r.Checks {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", c.Name, strings.ToUpper(string(c.Result)), c.Message)
		for i, object := range c.Objects {
			if i == objectsShown {
				_, _ = fmt.Fprintf(table, "\t\t  and %d more (-o json lists them)\n", len(c.Objects)-i)
				break
			}
			_, _ = fmt.Fprintf(table, "\t\t  %s\n", object)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	verdict := "READY: belay-controller may start."
	if !r.Ready {
		verdict = "NOT READY: belay-controller must not start yet."
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}

// JSON writes the report as one object.
func (r Report) JSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
