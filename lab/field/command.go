package field

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

const long = `Make situations in which people ask why a pod does not start, on a cluster without belay, and print what kubectl belay answers.

Each situation comes from public reports. API server, scheduler and claim controllers are real; what kubelets and drivers write is part
of a situation. Before the answers stands what an answer has to say first: the cause, and the next step.

Without a name it makes all situations, in about a minute. In a checkout, "make field-update" stores the answers.`

const examples = `  # What is there
  belay-lab field --list

  # What kubectl belay says of two of them, on a terminal of 80 columns
  belay-lab field cm-missing fsck --columns 80

  # All, beside what an answer has to say
  belay-lab field > answers.txt

  # Look at one with kubectl; Ctrl-C ends the cluster
  belay-lab field rwop --keep`

type commandOptions struct {
	name    string
	plugin  string
	columns int
	list    bool
	keep    bool
}

// Command is `belay-lab field`.
func Command() *cobra.Command {
	var o commandOptions
	command := &cobra.Command{
		Use: "field [SITUATION...]", Short: "Print what kubectl belay says in situations from public reports", Long: long, Example: examples,
		ValidArgs: Names(),
		Args: func(_ *cobra.Command, args []string) error {
			_, err := Load(args...)
			return err
		},
		RunE: func(command *cobra.Command, args []string) error {
			situations, err := Load(args...)
			if err != nil {
				return err
			}
			if o.list {
				return list(command.OutOrStdout(), situations)
			}
			if o.columns < 40 {
				return usage.Errorf("--columns is %d, but must be at least 40", o.columns)
			}
			return o.run(command, situations)
		},
	}
	f := command.Flags()
	f.StringVar(&o.name, "name", "field", "name of the lab")
	f.StringVar(&o.plugin, "plugin", "", "the program that is asked (default: kubectl-belay beside this program)")
	f.IntVar(&o.columns, "columns", 120, "width of the terminal on which it is asked")
	f.BoolVar(&o.list, "list", false, "print the names and what is the matter, and make nothing")
	f.BoolVar(&o.keep, "keep", false, "after the answers, keep the cluster until Ctrl-C")
	return command
}

func list(out io.Writer, situations []*Situation) error {
	for _, s := range situations {
		if _, err := fmt.Fprintf(out, "%-24s %s\n", s.Name, s.Title); err != nil {
			return fmt.Errorf("listing the situations: %w", err)
		}
	}
	return nil
}

func (o *commandOptions) run(command *cobra.Command, situations []*Situation) (err error) {
	ctx, errOut := command.Context(), command.ErrOrStderr()
	if o.plugin == "" {
		if o.plugin, err = cluster.Program("kubectl-belay"); err != nil {
			return err
		}
	}
	progress := func(format string, args ...any) { _, _ = fmt.Fprintf(errOut, format+"\n", args...) }
	r, err := Open(ctx, Options{Name: o.name, Progress: progress}, situations)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	for _, s := range situations {
		answers, err := r.AskAll(ctx, o.plugin, o.columns, s.Questions())
		if err != nil {
			return err
		}
		parts := []string{s.heading()}
		for _, a := range answers {
			parts = append(parts, a.String())
		}
		if _, err := fmt.Fprintln(command.OutOrStdout(), strings.Join(parts, "\n")); err != nil {
			return fmt.Errorf("printing the answers: %w", err)
		}
	}
	if o.keep {
		progress("The cluster runs until Ctrl-C. Its kubeconfig: %s; the one with the time of the answers: %s", r.lab.Kubeconfig(), r.kubeconfig)
		<-ctx.Done()
	}
	return nil
}

// heading is what a reader has to know to grade the answers.
func (s *Situation) heading() string {
	return fmt.Sprintf("== %s: %s\n%-7s %s\n%-7s %s\n%-7s %v\n", s.Name, s.Title, "Cause:", s.Cause, "Step:", s.Step, "From:", s.Sources)
}
