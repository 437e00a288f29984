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
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
)

func upCommand() *cobra.Command {
	options := cluster.Options{Drivers: labdisk.Drivers()}
	var upstreamPlane bool
	command := &cobra.Command{
		Use: "up", Short: "Start a lab and leave it running", Args: usage.NoArgs,
		Long: "Start a lab and leave it running; `belay-lab down` ends it. Needs root. The first start builds\n" +
			"the upstream programs (see `belay-lab build --help`).\n\n" +
			"Nodes are of one of two kinds. kubelet: a kubelet with containerd and runc. belay: belay's node agent, with each\n" +
			"container a plain process; kubectl logs works there; exec, cp, attach and port-forward return an error.\n\n" +
			"--controller-arg, --attacher-arg and --node-arg add a flag each to belay's programs and may be repeated; they win over\n" +
			"the lab's own. A program that refuses its flags keeps exiting: the start then fails with the end of its log.",
		Example: "  belay-lab up --nodes belay --node-count 2\n  eval \"$(belay-lab up --print-env)\" && kubectl get nodes\n" +
			"  belay-lab up --controller-arg=--max-wait-for-unmount-duration=1m --attacher-arg=--timeout=5s",
		RunE: func(command *cobra.Command, _ []string) error {
			if options.Nodes < 1 || options.Nodes > cluster.MaxNodes {
				return usage.Errorf("--node-count must be 1 to %d, not %d", cluster.MaxNodes, options.Nodes)
			}
			if upstreamPlane {
				options.Plane = cluster.PlaneUpstream
			}
			if err := options.Validate(); err != nil {
				return err
			}
			return up(command, options)
		},
	}
	nameFlag(command, &options.Name)
	flags := command.Flags()
	flags.StringVar(&options.NodeKind, "nodes", "", "kind of nodes: kubelet or belay (default: kubelet where containerd and runc are installed, else belay)")
	flags.IntVar(&options.Nodes, "node-count", 3, fmt.Sprintf("how many nodes, 1 to %d", cluster.MaxNodes))
	flags.BoolVar(&upstreamPlane, "upstream", false, "attach and detach with kube-controller-manager and csi-attacher, for comparison")
	flags.BoolVar(&options.Standbys, "standbys", false, "run a second belay-controller and a second attacher of each driver; either of the two may lead, from the start (kubectl get leases -A)")
	flags.BoolVar(&options.Permissive, "permissive", false, "storage that refuses nothing: what goes wrong shows in its records and in the data")
	flags.StringSliceVar(&options.Drivers, "drivers", labdisk.Drivers(), "drivers to run")
	flags.IntVarP(&options.Verbosity, "verbosity", "v", 2, "how much belay's components log (klog levels)")
	flags.StringArrayVar(&options.ControllerArgs, "controller-arg", nil, "flag for belay-controller, such as --deleted-node-policy=detach; not with --upstream")
	flags.StringArrayVar(&options.AttacherArgs, "attacher-arg", nil, "flag for belay-attacher, or with --upstream for csi-attacher, such as --timeout=5s")
	flags.StringArrayVar(&options.NodeArgs, "node-arg", nil, "flag for the agent of each node: a flag of kubelet, or on belay nodes --v or --volume-stats-agg-period")
	flags.BoolVar(&options.BMC, "bmc", false, "give each node a BMC that speaks IPMI (ipmi_sim) and switches the node off and on")
	flags.StringVar(&options.Recovery, "recovery", "", "run belay's recovery of volumes from dead nodes with this profile: default or fast; it implies --bmc")
	flags.Lookup("recovery").NoOptDefVal = "default"
	flags.BoolVar(&options.StorageEvidence, "storage-evidence", false, "declare to recovery that labdisk cuts a node off before it confirms an unpublish; with --recovery")
	flags.Bool("print-env", false, "print only the export lines for the shell to stdout, also if the lab is running already (see belay-lab env)")
	return command
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
	printEnv, err := command.Flags().GetBool("print-env")
	if err != nil {
		return fmt.Errorf("reading --print-env: %w", err)
	}
	if printEnv {
		if err := environmentOf(command, options.Name); !errors.Is(err, cluster.ErrNotRunning) {
			return err
		}
	}
	if err := supervise(command.Context(), options, command.ErrOrStderr()); err != nil {
		return err
	}
	if printEnv {
		return environmentOf(command, options.Name)
	}
	status, err := statusOf(command, options.Name)
	if err != nil {
		return err
	}
	printHowTo(command, status)
	return nil
}

func envCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use: "env [NAME]", Short: "Print the export lines for the shell of a lab that runs",
		Long:    "Print the lines that point a shell at a lab that runs: KUBECONFIG, and the kubectl of the lab's version in PATH.",
		Example: "  eval \"$(belay-lab env)\" && kubectl get nodes",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 {
				if command.Flags().Changed("name") {
					return usage.Errorf("give the name of the lab once: as an argument or with --name")
				}
				name = args[0]
			}
			return environmentOf(command, name)
		},
	}
	nameFlag(command, &name)
	return command
}

// environmentOf prints the export lines of a lab that runs.
func environmentOf(command *cobra.Command, name string) error {
	status, err := statusOf(command, name)
	if err != nil {
		return err
	}
	say(command.OutOrStdout(), "%s", exportLines(status, ""))
	return nil
}

// exportLines are the lines for the shell, each indented.
func exportLines(status cluster.Status, indent string) string {
	return fmt.Sprintf("%sexport KUBECONFIG=%s\n%sexport PATH=%s:$PATH\n", indent, quoted(status.Kubeconfig), indent, quoted(filepath.Dir(status.Kubectl)))
}

// quoted is a path as a shell takes it for one word.
func quoted(path string) string {
	if strings.Trim(path, plainInShell) == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

const plainInShell = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"

func printHowTo(command *cobra.Command, status cluster.Status) {
	out := command.OutOrStdout()
	say(out, "\nLab %s is up. To use it with the kubectl of its own version:\n\n", style(out, bold, status.Name))
	say(out, "%s  kubectl get nodes\n\n", exportLines(status, "  "))
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

// message is what the supervisor sends to `up` until the lab is ready, one JSON object per line.
type message struct {
	Progress string `json:"progress,omitempty"`
	Error    string `json:"error,omitempty"`
	Ready    bool   `json:"ready,omitempty"`
}

// supervise starts the supervisor and returns when the lab is ready. If ctx ends before, the
// supervisor gets SIGTERM, and supervise waits for its end: it leaves nothing behind.
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
		Use: superviseVerb, Short: "Hold a lab until it is stopped", Hidden: true, Args: usage.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var options cluster.Options
			if err := json.Unmarshal([]byte(encoded), &options); err != nil {
				return usage.Errorf("reading --options: %w", err)
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
