package preflight

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"belay.dev/belay/internal/printable"
)

// Result is the result of one check.
type Result string

const (
	// OK allows belay-controller to start.
	OK Result = "ok"
	// Warning allows it to start; a person should check.
	Warning Result = "warning"
	// Refused forbids it to start.
	Refused Result = "refused"
	// Unconfirmed forbids it to start until a person confirms that upstream's controller is
	// disabled.
	Unconfirmed Result = "unconfirmed"
	// Unknown forbids it to start: the check could not be made.
	Unknown Result = "unknown"
	// Failed is a check of the cluster's health that found something broken.
	Failed Result = "failed"
)

func (r Result) severity() int {
	return slices.Index([]Result{OK, Warning, Unknown, Unconfirmed, Refused, Failed}, r)
}

// Fails reports whether the check found what has to be changed.
func (r Result) Fails() bool { return r.severity() > Unknown.severity() }

// Check is one check and its result.
type Check struct {
	// Category groups the checks of a cluster's health.
	Category string `json:"category,omitempty"`
	Name     string `json:"name"`
	Result   Result `json:"result"`
	Message  string `json:"message"`
	// Objects are the objects that the message is about, "kind [namespace/]name: detail".
	Objects []string `json:"objects,omitempty"`
	// Hint is the command that prints what to do, or of Run a page of the documentation; absent if the check is ok.
	Hint string `json:"hint,omitempty"`
}

// Cluster identifies the cluster that was checked.
type Cluster struct {
	Server string `json:"server"`
	// Kubeconfig and Context configure the connection; both are empty inside a cluster.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	Context    string `json:"context,omitempty"`
}

// Source describes where the connection is configured.
func (c Cluster) Source() string {
	switch {
	case c.Kubeconfig == "":
		return "in-cluster configuration"
	case c.Context == "":
		return fmt.Sprintf("kubeconfig %s", c.Kubeconfig)
	}
	return fmt.Sprintf("context %q of kubeconfig %s", c.Context, c.Kubeconfig)
}

// Report holds all checks.
type Report struct {
	Cluster Cluster `json:"cluster"`
	Phase   Phase   `json:"phase"`
	// Ready reports whether the next step may be taken: in the phase TakeOver, whether belay-controller may start.
	Ready  bool    `json:"ready"`
	Checks []Check `json:"checks"`
	// Next is the next step of the migration.
	Next string `json:"next"`
}

// objectsShown limits the table; JSON has all objects.
const objectsShown = 5

// Text writes a table.
func (r Report) Text(out io.Writer) error {
	if _, err := fmt.Fprintf(out, "Cluster: %s (%s)\n\n", r.Cluster.Server, r.Cluster.Source()); err != nil {
		return fmt.Errorf("write the cluster: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "CHECK\tRESULT\tMESSAGE")
	for _, c := range r.Checks {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", c.Name, strings.ToUpper(string(c.Result)), printable.Line(c.Message))
		for i, object := range c.Objects {
			if i == objectsShown {
				_, _ = fmt.Fprintf(table, "\t\t  and %d more (-o json lists them)\n", len(c.Objects)-i)
				break
			}
			_, _ = fmt.Fprintf(table, "\t\t  %s\n", printable.Line(object))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	_, err := fmt.Fprintf(out, "%s\nNext: %s.\n", r.Verdict(), r.Next)
	return err
}

// JSON writes the report as one object.
func (r Report) JSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
