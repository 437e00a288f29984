package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/usage"
)

// output is the flag --output.
type output string

// formats are its values; empty is text.
var formats = []string{"json", "yaml"}

// String returns the value.
func (o *output) String() string { return string(*o) }

// Type is the name of the value in the help.
func (o *output) Type() string { return "string" }

// Set checks the value.
func (o *output) Set(value string) error {
	if !slices.Contains(formats, value) {
		return usage.Errorf("unknown format %q: use %s", value, strings.Join(formats, " or "))
	}
	*o = output(value)
	return nil
}

func (o *output) addTo(c *cobra.Command) {
	c.Flags().VarP(o, "output", "o", "output format: json or yaml; text by default. The schema is described in docs/kubectl-belay.md")
	// The flag was just added: it cannot be missing or have a completion.
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// print prints an answer as a document, or as text.
func (o output) print(out io.Writer, answer any, text func() error) error {
	var document []byte
	var err error
	switch o {
	case "json":
		document, err = json.MarshalIndent(answer, "", "  ")
		document = append(document, '\n')
	case "yaml":
		document, err = yaml.Marshal(answer)
	default:
		return text()
	}
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	_, err = out.Write(document)
	return err
}
