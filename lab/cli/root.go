package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/cluster"
)

// Exit codes.
const (
	// ExitOK: done.
	ExitOK = 0
	// ExitFailed: it was tried and failed.
	ExitFailed = 1
	// ExitUsage: the command line is wrong.
	ExitUsage = 2
	// ExitNotRunning: there is no such lab.
	ExitNotRunning = 3
	// ExitInterrupted: Ctrl-C or SIGTERM ended it, and nothing is left behind.
	ExitInterrupted = 130
)

const long = `belay-lab runs a Kubernetes control plane and a few nodes on this machine, with a storage that
sees every write, to watch volumes being attached, moved and recovered.

Everything that it makes lies in the cache folder ($BELAY_CACHE, else belay in $XDG_CACHE_HOME or
~/.cache): bin/<key> the upstream programs, labs/<name> one lab, logs/<name> the logs of its last run.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such lab runs, 130 interrupted (nothing is left behind).`

// usageError marks what is wrong with the command line rather than with the world.
type usageError struct{ error }

// Main runs the command line and returns the exit code.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// mkfs, losetup, runc and Go lie in folders that are not in every user's PATH, or not in sudo's.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"); err != nil {
		say(os.Stderr, "%v\n", err)
		return ExitFailed
	}
	root := New(version)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	say(os.Stderr, "%s %v\n", style(os.Stderr, red, "error:"), err)
	return exitCode(ctx, err)
}

func exitCode(ctx context.Context, err error) int {
	var coded interface{ ExitCode() int }
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return ExitUsage
	case errors.Is(err, cluster.ErrNotRunning):
		return ExitNotRunning
	case errors.As(err, &coded):
		return coded.ExitCode()
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
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, command.CommandPath())}
	})
	root.AddCommand(upCommand(), downCommand(), statusCommand(), cleanCommand(), nodeCommand(), killCommand(), buildCommand(), superviseCommand())
	mount(root)
	return root
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
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// nameFlag adds --name.
func nameFlag(command *cobra.Command, name *string) {
	command.Flags().StringVar(name, "name", "lab", "name of the lab")
}
