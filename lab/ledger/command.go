package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
)

// Exit codes of the program.
const (
	// ExitFailed is any failure that is not about the records: no file, an I/O error.
	ExitFailed = 1
	// ExitBroken says that the chain is broken or that records are missing.
	ExitBroken = 3
)

// errMissing says that a ledger holds fewer records than were acknowledged.
var errMissing = errors.New("acknowledged records are missing")

// ExitCode is the program's exit code for what Command's Execute returned.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrBroken), errors.Is(err, errMissing):
		return ExitBroken
	default:
		return usage.Status(err) // ExitFailed, or that of a wrong command line
	}
}

// Command is the program `ledger`.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:           "ledger",
		Short:         "Write numbered, chained records that survive a power cut, and read them back",
		SilenceUsage:  true,
		SilenceErrors: true,
		// The program is a container's process 1, which has no default signal
		// actions: it must ask for the signals that end it.
		PersistentPreRun: func(command *cobra.Command, _ []string) {
			ctx, _ := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			command.SetContext(ctx)
		},
	}
	root.SetFlagErrorFunc(usage.FlagError)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(appendCommand(), verifyCommand(), holdCommand(), pauseCommand())
	return root
}

// target are the flags that name a ledger.
type target struct {
	file  string
	block bool
}

func (t *target) register(command *cobra.Command) {
	command.Flags().StringVar(&t.file, "file", "", "file or block device that holds the records")
	command.Flags().BoolVar(&t.block, "block", false, "the file is a raw block device: one record per block of 4096 bytes")
	if err := command.MarkFlagRequired("file"); err != nil {
		panic(err) // the flag was added two lines above
	}
}

func (t *target) layout() Layout {
	if t.block {
		return Blocks
	}
	return Lines
}

type appendOptions struct {
	target
	writer   string
	interval time.Duration
	count    int64
}

func appendCommand() *cobra.Command {
	var options appendOptions
	command := &cobra.Command{
		Use:   "append",
		Short: "Append records until SIGTERM; print each number once it is on the disk",
		Args:  usage.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return appendRecords(command.Context(), command.OutOrStdout(), options)
		},
	}
	options.register(command)
	command.Flags().StringVar(&options.writer, "writer", defaultWriter(), "name in the records; default $NODE_NAME/$POD_NAME or the host's name")
	command.Flags().DurationVar(&options.interval, "interval", 100*time.Millisecond, "time between two records")
	command.Flags().Int64Var(&options.count, "count", 0, "end after this many records; 0: continue until SIGTERM")
	return command
}

func defaultWriter() string {
	node, pod := os.Getenv("NODE_NAME"), os.Getenv("POD_NAME")
	if node != "" || pod != "" {
		return node + "/" + pod
	}
	host, err := os.Hostname()
	if err != nil {
		return "unnamed"
	}
	return host
}

func appendRecords(ctx context.Context, out io.Writer, options appendOptions) (err error) {
	ledger, closer, err := Open(options.file, options.layout())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	found := ledger.Found()
	_, _ = fmt.Fprintf(out, "found %d records, dropped %d torn bytes, continuing as %s\n", found.Count, found.TornBytes, options.writer)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for written := int64(0); options.count == 0 || written < options.count; written++ {
		select {
		case <-ctx.Done():
			_, _ = fmt.Fprintf(out, "ended by signal after %d records\n", ledger.Found().Count)
			return nil
		case <-timer.C:
		}
		number, err := ledger.Append(options.writer, time.Now())
		if err != nil {
			return fmt.Errorf("ledger %s: %w", options.file, err)
		}
		if _, err := fmt.Fprintf(out, "acknowledged %d\n", number); err != nil {
			return fmt.Errorf("acknowledge record %d: %w", number, err)
		}
		timer.Reset(options.interval)
	}
	return nil
}

type verifyOptions struct {
	target
	atLeast int64
	output  string
}

func verifyCommand() *cobra.Command {
	var options verifyOptions
	command := &cobra.Command{
		Use:   "verify",
		Short: "Read all records back; exit 3 if the chain is broken or records are missing",
		Args:  usage.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return verify(command.OutOrStdout(), options)
		},
	}
	options.register(command)
	command.Flags().Int64Var(&options.atLeast, "at-least", 0, "how many records were acknowledged")
	command.Flags().StringVarP(&options.output, "output", "o", "text", "text or json")
	return command
}

func verify(out io.Writer, options verifyOptions) error {
	if !slices.Contains([]string{"text", "json"}, options.output) {
		return fmt.Errorf("output %q is neither text nor json", options.output)
	}
	file, err := os.Open(options.file)
	if err != nil {
		return fmt.Errorf("open ledger: %w", err)
	}
	defer func() { _ = file.Close() }()
	report, err := Read(file, options.layout())
	if err == nil && report.Count < options.atLeast {
		err = fmt.Errorf("%w: %d of %d are there", errMissing, report.Count, options.atLeast)
		report.Problem = err.Error()
	}
	if options.output == "json" {
		return errors.Join(err, json.NewEncoder(out).Encode(report))
	}
	verdict := "the chain holds"
	if err != nil {
		verdict = err.Error()
	}
	_, printErr := fmt.Fprintf(out, "%d records, %d torn bytes: %s\n", report.Count, report.TornBytes, verdict)
	return errors.Join(err, printErr)
}

func holdCommand() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "hold",
		Short: "Open a file or directory and wait for SIGTERM",
		Args:  usage.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			held, err := os.Open(file)
			if err != nil {
				return fmt.Errorf("open what to hold: %w", err)
			}
			defer func() { _ = held.Close() }()
			_, _ = fmt.Fprintf(command.OutOrStdout(), "holding %s\n", file)
			<-command.Context().Done()
			return nil
		},
	}
	command.Flags().StringVar(&file, "file", "/", "what to hold open")
	return command
}

// pauseCommand is the sandbox container of the lab's pods on a kubelet.
func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pause", Short: "Wait for SIGTERM", Hidden: true, Args: usage.NoArgs,
		Run: func(command *cobra.Command, _ []string) { <-command.Context().Done() },
	}
}
