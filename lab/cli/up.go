package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
)

func upCommand() *cobra.Command {
	options := cluster.Options{Drivers: labdisk.Drivers()}
	var upstreamPlane bool
	command := &cobra.Command{
		Use: "up", Short: "Start a lab and leave it running", Args: noArgs,
		Long: "Start a lab and leave it running; `belay-lab down` ends it. Needs root. The first start builds\n" +
			"the upstream programs (see `belay-lab build --help`).",
		Example: "  belay-lab up --nodes belay --node-count 2\n  eval \"$(belay-lab up --print-env)\" && kubectl get nodes",
		RunE: func(command *cobra.Command, _ []string) error {
			if upstreamPlane {
				options.Plane = cluster.PlaneUpstream
			}
			return up(command, options)
		},
	}
	nameFlag(command, &options.Name)
	flags := command.Flags()
	flags.StringVar(&options.NodeKind, "nodes", "", "kind of nodes: kubelet or belay (default: kubelet where containerd and runc are installed, else belay)")
	flags.IntVar(&options.Nodes, "node-count", 3, "how many nodes")
	flags.BoolVar(&upstreamPlane, "upstream", false, "attach and detach with kube-controller-manager and csi-attacher, for comparison")
	flags.BoolVar(&options.Permissive, "permissive", false, "storage that forbids nothing: what goes wrong shows in its records and in the data")
	flags.StringSliceVar(&options.Drivers, "drivers", labdisk.Drivers(), "drivers to run")
	flags.IntVarP(&options.Verbosity, "verbosity", "v", 2, "how much belay's components log (klog levels)")
	flags.Bool("print-env", false, "print nothing to stdout but the export lines for the shell")
	return command
}

// noArgs is cobra.NoArgs with the exit code of wrong usage.
func noArgs(command *cobra.Command, args []string) error {
	if err := cobra.NoArgs(command, args); err != nil {
		return usageError{err}
	}
	return nil
}

// up starts the supervisor as a process of its own and shows its progress until the lab is ready.
func up(command *cobra.Command, options cluster.Options) error {
	if options.NodeKind == "" {
		kind, because := cluster.DefaultNodeKind()
		options.NodeKind = kind
		if because != "" {
			progressTo(command.ErrOrStderr())("%s", because)
		}
	}
	ctx := command.Context()
	if err := supervise(ctx, options, command.ErrOrStderr()); err != nil {
		return err
	}
	lab, err := cluster.Find(options.Name)
	if err != nil {
		return err
	}
	status, err := lab.Status(ctx)
	if err != nil {
		return err
	}
	printHowTo(command, status)
	return nil
}

func printHowTo(command *cobra.Command, status cluster.Status) {
	out := command.OutOrStdout()
	kubectlDir := strings.TrimSuffix(status.Kubectl, "/kubectl")
	if printEnv, err := command.Flags().GetBool("print-env"); err == nil && printEnv {
		say(out, "export KUBECONFIG=%s\nexport PATH=%s:$PATH\n", status.Kubeconfig, kubectlDir)
		return
	}
	say(out, "\nLab %s is up. To use it with the kubectl of its own version:\n\n", style(out, bold, status.Name))
	say(out, "  export KUBECONFIG=%s\n  export PATH=%s:$PATH\n  kubectl get nodes\n\n", status.Kubeconfig, kubectlDir)
	suffix := ""
	if status.Name != "lab" {
		suffix = " --name " + status.Name
	}
	say(out, "Its components: belay-lab status%s. Its logs: %s/logs. To end it: belay-lab down%s\n", suffix, status.Dir, suffix)
}

// progressTo prints one line per step, with the time since the first.
func progressTo(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) {
		say(w, "%s %s\n", style(w, green, "·"), fmt.Sprintf(format, args...))
	}
}

// message is what the supervisor tells `up` until the lab is ready, one JSON object per line.
type message struct {
	Progress string `json:"progress,omitempty"`
	Error    string `json:"error,omitempty"`
	Ready    bool   `json:"ready,omitempty"`
}

// supervise starts the supervisor and returns when the lab is ready. If ctx ends before, the
// supervisor is told to give up, and it is waited for: it leaves nothing behind.
func supervise(ctx context.Context, options cluster.Options, progress io.Writer) error {
	encoded, err := json.Marshal(options)
	if err != nil {
		return fmt.Errorf("encoding the lab's options: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe to the supervisor: %w", err)
	}
	defer func() { _ = reader.Close() }()
	command := exec.Command(self, superviseVerb, "--options", string(encoded))
	// Its own session: it outlives the terminal. The pipe is descriptor 3, so that a reader that
	// goes away costs a failed write and not a SIGPIPE.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.ExtraFiles = []*os.File{writer}
	if err := command.Start(); err != nil {
		_ = writer.Close()
		return fmt.Errorf("starting the supervisor: %w", err)
	}
	_ = writer.Close()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Signal(unix.SIGTERM) })
	defer stop()
	ready, failure := follow(reader, progressTo(progress))
	if ready {
		return command.Process.Release()
	}
	exit := command.Wait()
	switch {
	case ctx.Err() != nil && failure != "":
		return fmt.Errorf("interrupted (%w), and taken down again: %s", context.Cause(ctx), failure)
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	case failure != "":
		return errors.New(failure)
	default:
		return fmt.Errorf("the supervisor ended before the lab was ready: %w", errors.Join(exit, errEarlyEnd))
	}
}

var errEarlyEnd = errors.New("it said nothing about why; `belay-lab clean` removes what it may have left")

// follow shows the supervisor's progress until it is ready, fails or ends.
func follow(r io.Reader, progress func(string, ...any)) (ready bool, failure string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			continue
		}
		switch {
		case m.Ready:
			return true, ""
		case m.Error != "":
			return false, m.Error
		default:
			progress("%s", m.Progress)
		}
	}
	return false, ""
}

const superviseVerb = "supervise"

// superviseCommand is the process that holds a lab that `up` started.
func superviseCommand() *cobra.Command {
	var encoded string
	command := &cobra.Command{
		Use: superviseVerb, Short: "Hold a lab until it is stopped", Hidden: true, Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var options cluster.Options
			if err := json.Unmarshal([]byte(encoded), &options); err != nil {
				return usageError{fmt.Errorf("reading --options: %w", err)}
			}
			pipe := os.NewFile(3, "progress")
			return hold(command.Context(), options, pipe)
		},
	}
	command.Flags().StringVar(&encoded, "options", "", "the lab's options (JSON)")
	return command
}

// hold starts the lab and takes it down when it is asked to.
func hold(ctx context.Context, options cluster.Options, pipe *os.File) error {
	tell := func(m message) {
		if line, err := json.Marshal(m); err == nil {
			_, _ = pipe.Write(append(line, '\n')) // the reader may have gone
		}
	}
	options.Progress = func(format string, args ...any) { tell(message{Progress: fmt.Sprintf(format, args...)}) }
	lab, err := cluster.Up(ctx, options)
	if err != nil {
		tell(message{Error: err.Error()})
		return err
	}
	tell(message{Ready: true})
	_ = pipe.Close()
	select {
	case <-ctx.Done():
	case <-lab.StopRequested():
	}
	down, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return lab.Down(down)
}
