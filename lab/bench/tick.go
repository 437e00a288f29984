package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

// tickOptions are the flags of `bench tick`.
type tickOptions struct {
	name, output string
	only         []string
	quick        bool
	ticks, unset []time.Duration
	rounds       int
	seed         uint64
	nodes        int
	window       time.Duration
	settle       time.Duration
}

const (
	// DefaultTick is kubelet's nodeStatusUpdateFrequency as shipped.
	DefaultTick = 10 * time.Second
	// maxHollow bounds the nodes of one API server on one machine.
	maxHollow = 5000
)

// tickPart is one part of the bench.
type tickPart struct {
	name   string
	planes []string
	what   func(*tickOptions) string
	run    func(context.Context, *tickOptions, func(string, ...any)) ([]*Figure, error)
	// takes is about how long it takes.
	takes func(*tickOptions) time.Duration
}

func tickParts() []tickPart {
	return []tickPart{
		{
			"moves", attacherPlanes(), func(o *tickOptions) string {
				return fmt.Sprintf("drains of real kubelets, medians of %d; nodeStatusReportFrequency is 5m at each nodeStatusUpdateFrequency; "+
					"drains spread over the tick, seed %d", o.rounds, o.seed)
			}, tickMoves, movesTake,
		},
		{
			"cost", []string{planeKubelets}, func(o *tickOptions) string {
				return fmt.Sprintf("%d hollow kubelets without pods, one API server; n=1 run of each setting, in the order given; "+
					"medians of its %d windows of %v, one after the other, after %v", o.nodes, tickReadings, o.window/tickReadings, o.settle)
			}, tickCost, costTakes,
		},
	}
}

func tickNames() (names []string) {
	for _, p := range tickParts() {
		names = append(names, p.name)
	}
	return names
}

// movesTake adds up 20 s for a lab's start and end, and for each drain 8 s and a tick and a quarter: half a tick is the mean pause before it,
// and the rest are the statuses that it waits for.
func movesTake(o *tickOptions) (sum time.Duration) {
	for _, tick := range o.ticks {
		sum += time.Duration(len(attacherPlanes())) * (20*time.Second + time.Duration(o.rounds)*(8*time.Second+tick*5/4))
	}
	return sum
}

func costTakes(o *tickOptions) time.Duration {
	return time.Duration(len(costRows(o.ticks, o.unset))) * (o.settle + o.window + 10*time.Second + time.Duration(o.nodes)*150*time.Millisecond)
}

const tickLong = `A kubelet writes the list of volumes that it uses (volumesInUse) with its status, which it computes every
nodeStatusUpdateFrequency, 10 s by default. A volume is detached only when it has left that list, and mounted only when it is
in the list of its new node. This measures what a shorter tick gains, and what it costs.

  moves  a lab of three real kubelets with containerd and runc for each tick and plane, one lab after the other. The node of a
         StatefulSet's pod with an exclusive volume is drained --rounds times, and the pod comes up on another node. Each drain
         begins at another phase of the tick: before it there is a pause of a random length from its share of the tick.
         The kubelets are as shipped, but for what several nodes on one machine need (lab/nodes/kubelet.go), for
         nodeStatusUpdateFrequency, and for nodeStatusReportFrequency, which is 5m at each tick, as its default is at 10 s.
         The controllers are as shipped, but for shorter leases. Images are there already; the pods have no network of their own
  cost   --nodes hollow kubelets, which are kubelet's own code over a fake runtime, cAdvisor and mounter, as in kubemark,
         all in one process, over one kube-apiserver and etcd, for each tick. They have no pods, and their CPU time contains
         that of the fake runtime. After a start they settle, until their reports are spread over the 5 minutes; then requests
         and CPU time are counted over --window, of which each third is a sample: samples of one run, which say nothing of
         how another run would differ. Requests that fail are among all others.
         Then those of --unset, with nodeStatusReportFrequency left unset: it is then the tick, and each status that a kubelet
         computes is a PATCH. No other client watches nodes: in a cluster each PATCH is also an event for all that do. etcd and
         the API server run with GOGC=400

A row of cost in which the kubelets computed less than 95 % of the statuses that they should have, or could not write them, was
measured on a saturated machine, and is marked. Run it on a machine with nothing else to do: whatever else runs takes its share of the same processors.`

// tickCommand is `belay-lab bench tick`.
func tickCommand() *cobra.Command {
	o := &tickOptions{}
	command := &cobra.Command{
		Use: "tick", Short: "Measure kubelet's status tick: what a shorter one gains in a move, and costs the cluster", Long: tickLong,
		Example: `  belay-lab bench tick                                    both parts, about 50 minutes
  belay-lab bench tick --only moves                       about 15 minutes
  belay-lab bench tick --only cost                        about 35 minutes
  belay-lab bench tick --only cost --nodes 200            about 30 minutes
  belay-lab bench tick --quick                            small sizes, to see that it works (4 minutes)
  belay-lab bench tick -o json > tick.json                all samples, for a chart`,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&o.name, "name", "bench-tick", "name of the lab")
	flags.StringSliceVar(&o.only, "only", nil, "parts to run: "+strings.Join(tickNames(), ", ")+" (default all)")
	flags.BoolVar(&o.quick, "quick", false, "small sizes where no flag says otherwise, to see that it works; the figures mean little")
	flags.DurationSliceVar(&o.ticks, "ticks", []time.Duration{DefaultTick, 4 * time.Second, 2 * time.Second, time.Second},
		"values of nodeStatusUpdateFrequency to measure, each 1s or longer (with --quick 2s,1s)")
	flags.DurationSliceVar(&o.unset, "unset", []time.Duration{4 * time.Second, time.Second},
		"cost: values of nodeStatusUpdateFrequency to measure with nodeStatusReportFrequency unset too (with --quick 1s)")
	flags.IntVar(&o.rounds, "rounds", 6, "moves: drains for each tick and plane (with --quick 1)")
	flags.Uint64Var(&o.seed, "seed", 1, "moves: of the pauses before the drains")
	flags.IntVar(&o.nodes, "nodes", 500, "cost: number of hollow kubelets (with --quick 20)")
	flags.DurationVar(&o.window, "window", time.Minute, "cost: how long each row is measured, 6s or longer (with --quick 6s)")
	flags.DurationVar(&o.settle, "settle", 3*time.Minute, "cost: how long the kubelets of each row run before; from 150s on their reports are spread evenly (with --quick 5s)")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json; progress goes to stderr")
	return command
}

// quickly sets small sizes where the command line says nothing.
func (o *tickOptions) quickly(given func(flag string) bool) {
	for flag, set := range map[string]func(){
		"ticks":  func() { o.ticks = []time.Duration{2 * time.Second, time.Second} },
		"unset":  func() { o.unset = []time.Duration{time.Second} },
		"rounds": func() { o.rounds = 1 }, "nodes": func() { o.nodes = 20 },
		"window": func() { o.window = 6 * time.Second }, "settle": func() { o.settle = 5 * time.Second },
	} {
		if !given(flag) {
			set()
		}
	}
}

// check returns the parts to run.
func (o *tickOptions) check() ([]tickPart, error) {
	switch {
	case o.output != "text" && o.output != "json":
		return nil, usage.Errorf("--output must be text or json, not %q", o.output)
	case o.rounds < 1:
		return nil, usage.Errorf("--rounds must be at least 1, not %d", o.rounds)
	case o.nodes < 1 || o.nodes > maxHollow:
		return nil, usage.Errorf("--nodes must be 1 to %d, not %d", maxHollow, o.nodes)
	case o.window < 2*tickReadings*time.Second:
		return nil, usage.Errorf("--window must be at least %v, not %v", 2*tickReadings*time.Second, o.window)
	case o.settle < 0:
		return nil, usage.Errorf("--settle must be at least 0, not %v", o.settle)
	case len(o.ticks) == 0 || slices.Min(slices.Concat(o.ticks, o.unset)) < time.Second:
		return nil, usage.Errorf("--ticks and --unset must be at least 1s each, not %v and %v", o.ticks, o.unset)
	}
	if err := cluster.CheckName(o.name); err != nil {
		return nil, err
	}
	return o.chosen()
}

// chosen are the parts that --only asks for.
func (o *tickOptions) chosen() ([]tickPart, error) {
	parts := tickParts()
	for _, name := range o.only {
		if !slices.Contains(tickNames(), name) {
			return nil, usage.Errorf("--only takes %s, not %q", strings.Join(tickNames(), ", "), name)
		}
	}
	parts = slices.DeleteFunc(parts, func(p tickPart) bool { return len(o.only) > 0 && !slices.Contains(o.only, p.name) })
	if _, because := cluster.DefaultNodeKind(); because != "" && parts[0].name == "moves" {
		return nil, usage.Errorf("moves needs real kubelets: %s: run hack/install-packages", because)
	}
	return parts, nil
}

func (o *tickOptions) run(command *cobra.Command) error {
	if o.quick {
		o.quickly(command.Flags().Changed)
	}
	parts, err := o.check()
	if err != nil {
		return err
	}
	started := time.Now()
	say := func(format string, args ...any) {
		command.PrintErrf("[%6.1fs] %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
	}
	report := &Report{Stamp: stampOf(command.Flags()), Machine: machine(), Quick: o.quick}
	for _, p := range parts {
		began := time.Now()
		say("%s: %s; about %v", p.name, p.what(o), p.takes(o).Round(time.Minute))
		figures, err := p.run(command.Context(), o, say)
		if err != nil {
			return stopped(command.Context(), fmt.Errorf("%s: %w", p.name, err))
		}
		report.Planes = append(report.Planes, p.planes...)
		report.Parts = append(report.Parts, Part{Name: p.name, What: p.what(o), Figures: figures, Seconds: time.Since(began).Seconds()})
	}
	report.Seconds = time.Since(started).Seconds()
	if o.output == "json" {
		return report.writeJSON(command.OutOrStdout())
	}
	return report.writeText(command.OutOrStdout())
}
