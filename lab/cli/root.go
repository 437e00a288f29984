package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

// Exit codes.
const (
	// ExitOK: done.
	ExitOK = 0
	// ExitFailed: it was tried and failed.
	ExitFailed = usage.StatusFailed
	// ExitUsage: the command line is wrong.
	ExitUsage = usage.StatusWrong
	// ExitNotRunning: there is no such lab.
	ExitNotRunning = 3
	// ExitInterrupted: Ctrl-C or SIGTERM ended it, and nothing is left behind.
	ExitInterrupted = 130
)

const long = `belay-lab runs a Kubernetes control plane and a few nodes on this machine, with a storage that
sees every write, to watch volumes being attached, moved and recovered.

Everything that it makes lies in the cache folder ($BELAY_CACHE, else belay in $XDG_CACHE_HOME or
~/.cache): bin/<key> the upstream programs, labs/<name> one lab, logs/<name> the logs of its last run.

Exit status:
  0    done
  1    failed
  2    wrong usage: an unknown command or flag, or an invalid value
  3    no lab of that name runs
  130  interrupted; nothing is left behind`

// Main runs the command line and returns the exit code.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// mkfs, losetup, runc and Go lie in folders that are not in every user's PATH, or not in sudo's.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"); err != nil {
		say(os.Stderr, "%v\n", err)
		return ExitFailed
	}
	err := execute(ctx, New(version), args)
	if err == nil {
		return ExitOK
	}
	say(os.Stderr, "%s %v\n", style(os.Stderr, red, "error:"), err)
	return exitCode(ctx, err)
}

// execute runs one command line.
func execute(ctx context.Context, root *cobra.Command, args []string) error {
	root.InitDefaultHelpCmd() // cobra adds both later, when it executes
	root.InitDefaultCompletionCmd(args...)
	if _, _, err := root.Find(args); err != nil {
		return usage.Errorf("%w; see %s --help", err, root.CommandPath()) // an unknown command
	}
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func exitCode(ctx context.Context, err error) int {
	switch {
	case errors.Is(err, cluster.ErrNotRunning):
		return ExitNotRunning
	case usage.Status(err) == usage.StatusWrong:
		return ExitUsage
	case ctx.Err() != nil:
		return ExitInterrupted
	default:
		return ExitFailed
	}
}

// New makes the root command.
func New(version string) *cobra.Command {
	root := &cobra.Command{
		Use: "belay-lab", Short: "A Kubernetes control plane, nodes and a storage on one machine", Long: long,
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	root.SetFlagErrorFunc(usage.FlagError)
	root.AddCommand(upCommand(), downCommand(), statusCommand(), envCommand(), cleanCommand(), nodeCommand(), killCommand(), cutCommand(), healCommand(), imageCommand(), switchCommand(), buildCommand(), superviseCommand(), bmcCommand(), chassisCommand())
	mount(root)
	refuseWrongUsage(root)
	return root
}

// refuseWrongUsage turns what cobra finds wrong with the command line of a command or of one below it into a usage.Error. A group
// of commands prints its help, unless it is given the name of a command that it does not have, which cobra would ignore.
func refuseWrongUsage(command *cobra.Command) {
	for _, child := range command.Commands() {
		refuseWrongUsage(child)
	}
	if command.HasSubCommands() {
		if command.HasParent() && !command.Runnable() {
			command.Args = unknownCommand
			command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() }
		}
		return
	}
	if positional := command.Args; positional != nil {
		command.Args = func(command *cobra.Command, args []string) error { return usage.Wrap(positional(command, args)) }
	}
	before := command.PreRunE
	command.PreRunE = func(command *cobra.Command, args []string) error {
		err := errors.Join(command.ValidateRequiredFlags(), command.ValidateFlagGroups())
		if name := command.Flags().Lookup("name"); err == nil && name != nil && name.Changed {
			err = cluster.CheckName(name.Value.String())
		}
		if err != nil || before == nil {
			return usage.Wrap(err)
		}
		return before(command, args)
	}
}

func unknownCommand(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	suggestion := ""
	if near := command.SuggestionsFor(args[0]); len(near) > 0 {
		suggestion = fmt.Sprintf(" (did you mean %s?)", strings.Join(near, " or "))
	}
	return usage.Errorf("unknown command %q for %q%s; see %s --help", args[0], command.CommandPath(), suggestion, command.CommandPath())
}

// Colours, on a terminal only.
const (
	red   = "31"
	green = "32"
	bold  = "1"
)

// style colours text if w is a terminal and the user has not said NO_COLOR.
func style(w io.Writer, code, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// say prints for a person; one who has gone away needs no error.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// nameFlag adds --name.
func nameFlag(command *cobra.Command, name *string) {
	command.Flags().StringVar(name, "name", "lab", "name of the lab")
}
