package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

// Size of a run.
type Size struct {
	// Rounds is how often each plane has its turn, with Cycles attaches and detaches and Moves moves in each.
	Rounds, Cycles, Moves int
	// BurstPods are bound at once, over BurstNodes; BurstLimit bounds it.
	BurstPods, BurstNodes int
	BurstLimit            time.Duration
	// SharedNodes get one volume at once.
	SharedNodes int
	// ScaleVolumes are attached, over ScaleNodes, while Idle is measured.
	ScaleVolumes, ScaleNodes int
	// ScaleExtras are attached on top of these, on nodes of their own.
	ScaleExtras int
	Idle        time.Duration
	// AttachVolumes are attached at once for each of Latencies, FewVolumes for the last of them.
	AttachVolumes, FewVolumes int
	Latencies                 []time.Duration
	// AttachNodes are the numbers of nodes to which one shared volume is attached at once, growing.
	AttachNodes []int
	// AttachLimit bounds one turn of that: upstream as shipped takes three requests per attach at five a second.
	AttachLimit time.Duration
	// OneVolumes are attached and moved one at a time in each turn, SlowVolumes with a driver of SlowLatency; DrainVolumes leave a
	// node at once.
	OneVolumes, SlowVolumes, DrainVolumes int
	SlowLatency                           time.Duration
	// NodeCycles volumes are brought up on a node and taken down, one at a time, for each of NodeLatencies; NodeParallel at
	// once for each of ParallelLatencies.
	NodeCycles, NodeParallel         int
	NodeLatencies, ParallelLatencies []time.Duration
	// NodePods have their volumes on one node agent; Agents agents have AgentVolumes each in one process.
	NodePods, Agents, AgentVolumes int
}

func fullSize() Size {
	return Size{
		Cycles: 10, Moves: 5, BurstPods: 2000, BurstNodes: 200, BurstLimit: 5 * time.Minute, SharedNodes: 1000,
		ScaleVolumes: 20000, ScaleNodes: 1000, ScaleExtras: 500, Idle: time.Minute,
		AttachVolumes: 500, FewVolumes: 200, Latencies: []time.Duration{0, 200 * time.Millisecond, 2 * time.Second}, AttachLimit: 20 * time.Minute,
		AttachNodes: []int{500, 2000},
		OneVolumes:  4, SlowVolumes: 3, DrainVolumes: 100, SlowLatency: 10 * time.Second,
		NodeCycles: 50, NodeParallel: 100, NodeLatencies: []time.Duration{0, 50 * time.Millisecond},
		ParallelLatencies: []time.Duration{0, 200 * time.Millisecond, time.Second}, NodePods: 500, Agents: 1000, AgentVolumes: 10,
	}
}

func quickSize() Size {
	return Size{
		Rounds: 1, Cycles: 3, Moves: 2, BurstPods: 100, BurstNodes: 10, BurstLimit: 2 * time.Minute, SharedNodes: 50,
		ScaleVolumes: 400, ScaleNodes: 20, ScaleExtras: 50, Idle: 5 * time.Second,
		AttachVolumes: 20, FewVolumes: 8, Latencies: []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond}, AttachLimit: 2 * time.Minute,
		AttachNodes: []int{10, 20},
		OneVolumes:  2, SlowVolumes: 1, DrainVolumes: 10, SlowLatency: 400 * time.Millisecond,
		NodeCycles: 3, NodeParallel: 10, NodeLatencies: []time.Duration{0, 20 * time.Millisecond},
		ParallelLatencies: []time.Duration{0, 50 * time.Millisecond}, NodePods: 20, Agents: 10, AgentVolumes: 10,
	}
}

// part is one part of the bench that can be run on its own.
type part struct {
	name string
	what func(Size) string
	run  func(context.Context, Size, *rig) ([]*Figure, error)
	// lab is what the part needs of its lab.
	lab rigOptions
}

// measure runs the part in a lab of its own.
func (p part) measure(ctx context.Context, size Size, lab rigOptions) (figures []*Figure, err error) {
	r, err := openRig(ctx, lab)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	return p.run(ctx, size, r)
}

func controllerParts() []part {
	return []part{
		{"latency", func(s Size) string {
			return fmt.Sprintf("one volume at a time; medians of %d attaches and detaches and %d moves each", s.Rounds*s.Cycles, s.Rounds*s.Moves)
		}, latency, rigOptions{}},
		{"requests", func(s Size) string {
			return fmt.Sprintf("API requests, counted in the audit log over %d attaches and detaches; leases and watches left out", s.Cycles)
		}, requests, rigOptions{audit: true}},
		{"burst", func(s Size) string {
			return fmt.Sprintf("%d pods on %d nodes made at once, bound by kube-scheduler, then deleted at once; medians of %d", s.BurstPods, s.BurstNodes, s.Rounds)
		}, burst, rigOptions{later: true}},
		{"whole", func(s Size) string {
			return fmt.Sprintf("the same with each plane's own attacher, upstream's with %s; medians of %d", strings.Join(tunedFlags(s), " "), s.Rounds)
		}, whole, rigOptions{later: true}},
		{"shared", func(s Size) string {
			return fmt.Sprintf("one volume of %d pods on as many nodes, made at once, then deleted at once; medians of %d", s.SharedNodes, s.Rounds)
		}, shared, rigOptions{}},
		{"scale", func(s Size) string {
			return fmt.Sprintf("started over %d attached volumes on %d nodes, then left alone for %v, then %d volumes more at once",
				s.ScaleVolumes, s.ScaleNodes, s.Idle, s.ScaleExtras)
		}, scale, rigOptions{later: true}},
	}
}

func partNames(parts []part) []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// Command is `belay-lab bench`.
func Command() *cobra.Command {
	command := &cobra.Command{
		Use: "bench", Short: "Measure belay against upstream and against a floor, in one run",
		Args: usage.NoArgs, SilenceUsage: true,
	}
	command.AddCommand(controllerCommand(), attacherCommand(), nodeCommand(), recoveryCommand(), scaleCommand(), tickCommand(), floorCommand(), agentsCommand())
	return command
}

// options are those of each bench.
type options struct {
	parts  []part
	planes []string // in the order of the report's columns

	name      string
	only      []string
	quick     bool
	noTargets bool
	rounds    int
	// roundsGiven: 0 is the default, and no number of rounds that can be asked for.
	roundsGiven bool
	output      string
}

const controllerLong = `Sets three attach/detach controllers side by side, in turn (upstream, belay, floor, upstream, ...), over
one API server, one belay-attacher and a CSI driver in memory that answers at once:

  upstream  kube-controller-manager with no other controller, its client's limits lifted
  belay     belay-controller as shipped
  floor     makes the same writes (VolumeAttachment, report, withdrawal, delete) the moment its watches allow
            and checks nothing: no controller can be faster on this machine

Nodes are objects; the bench itself writes what kubelets would (volumesInUse) at the right moment.

Parts, each with a lab of its own:

  latency   one volume at a time: pod bound -> reported; pod gone -> detached; and a move: the last node has
            released the volume (it left volumesInUse) -> reported on the next
  requests  what one attach and one detach cost the API server, counted in its audit log
  burst     2000 pods on 200 nodes made at once and bound by kube-scheduler, its client's limits lifted: the last
            pod bound -> the last volume reported; and the controller's CPU time per attach
  whole     the same with csi-attacher beside upstream's controller, all its limits lifted, and belay-attacher as shipped
            beside belay's and the floor; and the CPU time of controller and attacher together
  shared    one ReadWriteMany volume, 1000 nodes, one pod for each made at once: the first pod made -> the volume
            reported on all nodes; upstream has no turn
  scale     20000 attached volumes on 1000 nodes: peak memory since the start, CPU when nothing happens, CPU time
            of each of 500 attaches more, and that the start changes one VolumeAttachment and one Node at most

Each figure is printed with its target and whether belay met it. The exit code is 1 if one was missed, or if
the driver saw an exclusive volume published twice. Run it on a machine with nothing else to do: whatever
else runs takes its share of the same processors, and of the smallest figures first.`

func controllerCommand() *cobra.Command {
	o := options{parts: controllerParts(), planes: planes()}
	return o.command(&cobra.Command{
		Use: "controller", Short: "Measure belay-controller: latency, API requests, burst, CPU, memory", Long: controllerLong,
		Example: `  belay-lab bench controller                      all parts, about 20 minutes
  belay-lab bench controller --only latency       one part
  belay-lab bench controller --quick --no-targets small sizes, to see that it works (1.5 minutes)
  belay-lab bench controller -o json > bench.json all samples, for a chart`,
	}, "bench", "latency, burst, whole and shared")
}

// command has a command run the parts, and adds the flags. The lab is called name; only some parts have rounds.
func (o *options) command(command *cobra.Command, name, rounds string) *cobra.Command {
	command.Args, command.SilenceUsage = usage.NoArgs, true
	command.RunE = func(command *cobra.Command, _ []string) error { return o.run(command) }
	flags := command.Flags()
	flags.StringVar(&o.name, "name", name, "name of the lab")
	flags.StringSliceVar(&o.only, "only", nil, "parts to run: "+strings.Join(partNames(o.parts), ", ")+" (default all)")
	flags.BoolVar(&o.quick, "quick", false, "small sizes, to see that it works; the figures mean little")
	flags.BoolVar(&o.noTargets, "no-targets", false, "for information only: missed targets are printed, but the exit code is 0")
	if n := len(o.planes); n > 1 {
		rounds += fmt.Sprintf("; a multiple of %d lets each begin equally often", n)
	}
	flags.IntVar(&o.rounds, "rounds", 0, fmt.Sprintf("how often each plane has its turn in %s (default %d, with --quick 1)", rounds, fairRounds(len(o.planes))))
	flags.StringVarP(&o.output, "output", "o", "text", "text or json; progress goes to stderr")
	return command
}

func (o options) check() ([]part, error) {
	if !slices.Contains([]string{"text", "json"}, o.output) {
		return nil, usage.Errorf("--output must be text or json, not %q", o.output)
	}
	if o.rounds < 0 || o.rounds == 0 && o.roundsGiven {
		return nil, usage.Errorf("--rounds must be at least 1, not %d", o.rounds)
	}
	if err := cluster.CheckName(o.name); err != nil {
		return nil, err
	}
	for _, name := range o.only {
		if !slices.Contains(partNames(o.parts), name) {
			return nil, usage.Errorf("--only takes %s, not %q", strings.Join(partNames(o.parts), ", "), name)
		}
	}
	return slices.DeleteFunc(slices.Clone(o.parts), func(p part) bool { return len(o.only) > 0 && !slices.Contains(o.only, p.name) }), nil
}

func (o options) run(command *cobra.Command) error {
	o.roundsGiven = command.Flags().Changed("rounds")
	chosen, err := o.check()
	if err != nil {
		return err
	}
	ctx := command.Context() // ends with Ctrl-C
	started := time.Now()
	say := func(format string, args ...any) {
		command.PrintErrf("[%5.1fs] %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
	}
	size := o.size()
	if size.Rounds%len(o.planes) != 0 && !o.quick {
		say("with %d rounds of %d planes, %s begins a round more often than %s, and is measured slower for it", size.Rounds, len(o.planes), o.planes[0], o.planes[len(o.planes)-1])
	}
	report := &Report{Stamp: stampOf(command.Flags()), Planes: o.planes, Machine: machine(), Quick: o.quick}
	for _, p := range chosen {
		began := time.Now()
		say("%s: %s", p.name, p.what(size))
		lab := p.lab
		lab.name, lab.say = o.name, say
		figures, err := p.measure(ctx, size, lab)
		if err != nil {
			return stopped(ctx, fmt.Errorf("%s: %w", p.name, err))
		}
		report.Parts = append(report.Parts, Part{Name: p.name, What: p.what(size), Figures: figures, Seconds: time.Since(began).Seconds()})
	}
	report.Seconds = time.Since(started).Seconds()
	if o.output == "json" {
		err = report.writeJSON(command.OutOrStdout())
	} else {
		err = report.writeText(command.OutOrStdout())
	}
	if err != nil {
		return err
	}
	if missed, of := report.missed(); len(missed) > 0 && !o.noTargets {
		return fmt.Errorf("%d of %d targets were missed: %s", len(missed), of, strings.Join(missed, "; "))
	}
	return nil
}

// stopped puts first that a bench was interrupted, if it was, and keeps the error: it says whether the lab could be taken down.
func stopped(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(fmt.Errorf("the bench was stopped: %w", context.Cause(ctx)), err)
}

// size is what flags ask for.
func (o options) size() Size {
	size := fullSize()
	size.Rounds = fairRounds(len(o.planes))
	if o.quick {
		size = quickSize()
	}
	if o.rounds > 0 {
		size.Rounds = o.rounds
	}
	return size
}

// fairRounds is the least number of rounds, three or more, in which each of so many planes begins equally often: the one that begins a
// round is slower.
func fairRounds(planes int) int { return (planes + 2) / planes * planes }

// machine says on what the figures were measured.
func machine() string {
	return fmt.Sprintf("%d processors, load %s at the start", runtime.NumCPU(), loadAverage())
}

// loadAverage is that of the last minute.
func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(raw), " ")
	return load
}

// floorCommand runs the floor, as a process of its own like the others.
func floorCommand() *cobra.Command {
	var kubeconfig string
	command := &cobra.Command{
		Use: "floor", Short: "Make the writes of attach and detach and check nothing (for `bench controller`)", Hidden: true,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error { return runFloor(command.Context(), kubeconfig) },
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "credential of the cluster")
	return command
}
