package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// output is the flag --output.
type output string

// The values of it. All commands have the first two; empty is text, or a table.
const (
	formatJSON  output = "json"
	formatYAML  output = "yaml"
	formatWide  output = "wide"
	formatName  output = "name"
	formatShort output = "short"
)

// outputFlag takes one of the formats of a command.
type outputFlag struct {
	*output

	formats []string
}

// String returns the value.
func (o outputFlag) String() string {
	if o.output == nil { // pflag asks the zero value
		return ""
	}
	return string(*o.output)
}

// Type is the name of the value in the help.
func (o outputFlag) Type() string { return "string" }

// Set checks the value.
func (o outputFlag) Set(value string) error {
	if !slices.Contains(o.formats, value) {
		return usage.Errorf("unknown format %q: use %s", value, orList(o.formats))
	}
	*o.output = output(value)
	return nil
}

// orList is "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// addTo adds the flag. What the other formats are for is added to their names in the help, "wide (all answers)".
func (o *output) addTo(c *cobra.Command, byDefault string, others ...string) {
	described := append([]string{string(formatJSON), string(formatYAML)}, others...)
	formats := make([]string, 0, len(described))
	for _, d := range described {
		format, _, _ := strings.Cut(d, " ")
		formats = append(formats, format)
	}
	c.Flags().VarP(outputFlag{o, formats}, "output", "o", "output format: "+orList(described)+"; "+byDefault+" by default")
	// The flag was just added: it cannot be missing or have a completion.
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// addToList adds the flag to a command that prints a table.
func (o *output) addToList(c *cobra.Command) {
	o.addTo(c, "a table", string(formatWide), string(formatName))
}

// addConfirm adds the flag without which a command only shows what it would do.
func addConfirm(c *cobra.Command, confirm *bool) {
	c.Flags().BoolVar(confirm, "confirm", false, "do it; without, it is only shown")
}

// print prints an answer as a document, or as text.
func (o output) print(out io.Writer, answer any, text func() error) error {
	switch o {
	case formatJSON: // json.MarshalIndent has three copies of a document, which is as large as the snapshot
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(answer); err != nil {
			return fmt.Errorf("print the output: %w", err)
		}
		return nil
	case formatYAML:
		document, err := printable.YAML(answer)
		if err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		_, err = out.Write(document)
		return err
	default:
		return text()
	}
}
