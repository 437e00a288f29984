package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
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
	verbose     bool
	requireAll  bool
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

The output ends with a table of the moves: how long each took, and what it waited for. The
charts of all steps, what ` + "`kubectl belay explain`" + ` says of the second pod while it waits, and
` + "`kubectl belay timeline`" + ` of the last move are written to a file, or with --verbose printed.

What this machine cannot show is listed at the start and at the end. hack/install-packages
installs what is missing.

Two waits are shortened, for both planes alike, because they are neither plane's work: the
time after which a silent node becomes NotReady (default: 50 s), and the interval at which
kubelets publish volumesInUse (default: 10 s).`,
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
	flags.BoolVar(&o.verbose, "verbose", false, "print the charts of all steps and what kubectl belay says of the moves, instead of writing them to a file")
	flags.BoolVar(&o.requireAll, "require-all", false, "refuse to start, with status 1, where recovery or kubelets cannot be shown because programs are missing")
	return command
}

func (o options) run(command *cobra.Command) (err error) {
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
	missing := cluster.MissingParts()
	if o.requireAll {
		if err := requireAll(missing); err != nil {
			return err
		}
	}
	show, err := o.newScreen(command.OutOrStdout())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, show.close()) }()
	show.notShown = o.notShown(missing)
	if err := writeNotShown(command.ErrOrStderr(), show.notShown); err != nil {
		return err
	}
	kind := o.nodes
	if kind == "" {
		kind, _ = cluster.DefaultNodeKind() // why it is not kubelet is in notShown
	}
	var results []*Result
	for _, plane := range o.planes() {
		result, err := Run(ctx, Settings{Name: o.name, NodeKind: kind, Plane: plane, Rounds: o.rounds, Say: say, Show: show.move})
		if err != nil {
			if file := show.written(); file != "" {
				say("the steps so far: %s", file)
			}
			return explain(ctx, plane, err)
		}
		results = append(results, result)
	}
	return show.end(results, time.Since(started))
}

// planes are those that make the moves, in this order.
func (o options) planes() []string {
	switch {
	case o.upstream:
		return []string{cluster.PlaneUpstream}
	case o.compare:
		return []string{cluster.PlaneBelay, cluster.PlaneUpstream}
	default:
		return []string{cluster.PlaneBelay}
	}
}

// check refuses what cannot be, before anything is printed or started.
func (o options) check() error {
	switch {
	case !slices.Contains([]string{"text", "json"}, o.output):
		return usage.Errorf("--output must be text or json, not %q", o.output)
	case o.upstream && o.compare:
		return usage.Errorf("--compare runs both planes: leave --upstream out")
	case o.verbose && o.output == "json":
		return usage.Errorf("--output json has all that --verbose prints: leave --verbose out")
	case o.requireAll && o.upstream:
		return usage.Errorf("--require-all needs recovery, which upstream's plane does not have: leave --upstream out")
	case o.requireAll && o.nodes == cluster.NodeKindBelay:
		return usage.Errorf("--require-all needs kubelets: leave --nodes %s out", o.nodes)
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
	err = fmt.Errorf("the demo with %s's plane failed: %w", plane, err)
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("the demo was stopped: %w", context.Cause(ctx)), err)
	}
	return err
}
