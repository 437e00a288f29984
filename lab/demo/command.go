package demo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/timeline"
)

// roundsCompared: one move alone shows the phase of upstream's ticks and the first use
// of a control plane that is seconds old.
const roundsCompared = 5

// options are the flags of the command.
type options struct {
	name     string
	nodes    string
	upstream bool
	compare  bool
	rounds   int
	// roundsGiven: 0 is the default, and no number of rounds that can be asked for.
	roundsGiven bool
	output      string
}

// Command is `belay-lab demo`.
func Command() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "demo",
		Short: "Show a volume being provisioned, moved by a drain, refused to a second user, and recovered from a node without power",
		Long: `Starts a lab of three nodes, writes records to a claim, and moves the volume:

  1  the writer's node is drained, the writer comes up on another node
  2  a second pod on a third node gets an event that says who holds the volume
  3  the writer's node loses its power, recovery proves that it is off, the writer comes up elsewhere

At the end all records are read back and the storage is asked for writes that it had to
refuse. The exit code is 0 only if every acknowledged record is in place.

The last lines are what ` + "`kubectl belay explain`" + ` said of the second pod while it waited, and
` + "`kubectl belay timeline`" + ` of the last move.

Two waits are shortened, for both planes alike, because they are neither plane's work: the
time after which a silent node becomes NotReady (upstream: 50 s), and the tick with which
kubelets publish volumesInUse (upstream: 10 s).`,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&o.name, "name", "demo", "name of the lab")
	flags.StringVar(&o.nodes, "nodes", "", "kind of nodes, kubelet or belay (default: kubelet where containerd and runc are installed)")
	flags.BoolVar(&o.upstream, "upstream", false, "use upstream's attach/detach controller and csi-attacher instead of belay's")
	flags.BoolVar(&o.compare, "compare", false, "make the same moves through belay and through upstream, and print both with ratios")
	flags.IntVar(&o.rounds, "rounds", 0, "how often a volume is placed and drained; the comparison takes medians (default 1, with --compare 5)")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json; progress goes to stderr")
	return command
}

func (o options) run(command *cobra.Command) error {
	o.roundsGiven = command.Flags().Changed("rounds")
	if err := o.check(); err != nil {
		return err
	}
	if o.rounds == 0 && o.compare {
		o.rounds = roundsCompared
	}
	ctx := command.Context() // ends with Ctrl-C
	started := time.Now()
	say := func(format string, args ...any) {
		command.PrintErrf("[%5.1fs] %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
	}
	kind := o.nodes
	if kind == "" {
		var because string
		if kind, because = cluster.DefaultNodeKind(); because != "" {
			say("%s", because)
		}
	}
	show := &screen{out: command.OutOrStdout(), json: o.output == "json", style: timeline.StyleFor(os.Stdout)}
	planes := []string{cluster.PlaneBelay}
	switch {
	case o.upstream:
		planes = []string{cluster.PlaneUpstream}
	case o.compare:
		planes = append(planes, cluster.PlaneUpstream)
	}
	var results []*Result
	for _, plane := range planes {
		result, err := Run(ctx, Settings{Name: o.name, NodeKind: kind, Plane: plane, Rounds: o.rounds, Say: say, Show: show.move})
		if err != nil {
			return explain(ctx, plane, err)
		}
		results = append(results, result)
	}
	return show.end(results, time.Since(started))
}

// check refuses what cannot be, before anything is printed or started.
func (o options) check() error {
	switch {
	case !slices.Contains([]string{"text", "json"}, o.output):
		return usage.Errorf("--output must be text or json, not %q", o.output)
	case o.upstream && o.compare:
		return usage.Errorf("--compare runs both planes: leave --upstream out")
	case o.rounds < 1 && o.roundsGiven:
		return usage.Errorf("--rounds must be at least 1, not %d", o.rounds)
	}
	if err := cluster.CheckName(o.name); err != nil {
		return err
	}
	return cluster.Options{NodeKind: o.nodes}.Validate()
}

// explain puts first whether the user stopped the demo.
func explain(ctx context.Context, plane string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the demo was stopped (%w); the lab is down", context.Cause(ctx))
	}
	return fmt.Errorf("the demo with %s's plane failed: %w", plane, err)
}
