package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

// The faults that a node recovers its volumes from.
const (
	FaultPowerCut = "power cut"
	FaultHung     = "hung"
)

// recoveryLimits are the project's targets for the median, by profile.
var recoveryLimits = map[string]time.Duration{fencing.Fast.Name: 15 * time.Second, fencing.Default.Name: 35 * time.Second}

// recoveryOptions are the flags of `bench recovery`.
type recoveryOptions struct {
	name, output                    string
	runs, upstreamRuns              int
	upstreamWait                    time.Duration
	nodes, faults, profiles, planes []string
	noTargets                       bool
}

const recoveryLong = `Takes nodes away under a StatefulSet's pod that writes records, and measures how long it takes until the pod writes again on
another node. Evidence is the node's BMC alone: OpenIPMI's simulator ipmi_sim, asked over IPMI by Debian's fence_ipmilan.

  power cut  all processes of the node are killed, and its BMC says Off
  hung       all processes of the node are frozen, and its BMC says On: belay switches it off

There is one lab of four nodes for each kind of node, profile and attach/detach controller, and all its runs move one volume from node to
node. A node that was lost is switched on again after its run and joins while the next runs continue. After each run, all acknowledged
records are read back, and the storage is asked for writes that it had to refuse: either is a failure of the run.

The clock starts when the lab kills or freezes the node, at a random time since its last heartbeat, and ends with the first record that
the pod writes on its new node. Each run's time is divided into the hops of the recovery. Upstream's planes without recovery follow: a
StatefulSet's pod is not replaced there, so a script switches the node off and sets the out-of-service taint in the moment in which
the node becomes NotReady, as a person may who knows that it is off; and one node is left alone for --upstream-wait.

The exit code is 1 if a run of recovery failed or the median of a series is above its target: 15 s with the profile fast, 35 s with
default.`

func recoveryCommand() *cobra.Command {
	var o recoveryOptions
	command := &cobra.Command{
		Use: "recovery", Short: "Measure recovery: dead or hung node -> StatefulSet's pod writing elsewhere, per hop", Long: recoveryLong,
		Example: `  belay-lab bench recovery                                         all series, about two hours
  belay-lab bench recovery --runs 2 --profiles fast --nodes belay  a first look (4 minutes)
  belay-lab bench recovery --runs 0 --upstream-runs 3              upstream alone
  belay-lab bench recovery -o json > recovery.json                 all runs`,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&o.name, "name", "bench-recovery", "name of the lab")
	flags.IntVar(&o.runs, "runs", 20, "runs of each fault in each lab with recovery")
	flags.IntVar(&o.upstreamRuns, "upstream-runs", 3, "runs of each fault on each kind of node without recovery")
	flags.DurationVar(&o.upstreamWait, "upstream-wait", 8*time.Minute, "how long a dead node is left alone without recovery; 0 for not at all")
	flags.StringSliceVar(&o.nodes, "nodes", []string{cluster.NodeKindBelay, cluster.NodeKindKubelet}, "kinds of nodes: belay, kubelet")
	flags.StringSliceVar(&o.faults, "faults", []string{FaultPowerCut, FaultHung}, "faults: power cut, hung")
	flags.StringSliceVar(&o.profiles, "profiles", []string{fencing.Fast.Name, fencing.Default.Name}, "profiles of recovery: fast, default")
	flags.StringSliceVar(&o.planes, "planes", []string{planeBelay}, "whose attach/detach controller runs beside recovery: belay, upstream")
	flags.BoolVar(&o.noTargets, "no-targets", false, "for information only: missed targets are printed, but the exit code is 0")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json; progress goes to stderr")
	return command
}

func (o recoveryOptions) check() error {
	for flag, list := range map[string]struct{ given, known []string }{
		"output": {[]string{o.output}, []string{"text", "json"}}, "nodes": {o.nodes, []string{cluster.NodeKindBelay, cluster.NodeKindKubelet}},
		"faults": {o.faults, []string{FaultPowerCut, FaultHung}}, "profiles": {o.profiles, []string{fencing.Fast.Name, fencing.Default.Name}},
		"planes": {o.planes, []string{planeBelay, planeUpstream}},
	} {
		for _, word := range list.given {
			if !slices.Contains(list.known, word) {
				return usage.Errorf("--%s must be of %s, not %q", flag, strings.Join(list.known, ", "), word)
			}
		}
	}
	if o.runs < 0 || o.upstreamRuns < 0 || o.upstreamWait < 0 {
		return usage.Errorf("--runs, --upstream-runs and --upstream-wait must be at least 0")
	}
	if !cluster.CanFence() {
		return usage.Errorf("ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
	return cluster.CheckName(o.name)
}

// labs that are measured, one after the other.
func (o recoveryOptions) labs() []recoveryLab {
	var labs []recoveryLab
	lab := recoveryLab{name: o.name, faults: o.faults}
	for _, lab.nodes = range o.nodes {
		lab.wait, lab.runs = 0, o.runs
		for _, lab.profile = range o.profiles {
			for _, lab.plane = range o.planes {
				if lab.runs > 0 {
					labs = append(labs, lab)
				}
			}
		}
		lab.profile, lab.plane, lab.runs, lab.wait = "", planeUpstream, o.upstreamRuns, o.upstreamWait
		if lab.runs > 0 || lab.wait > 0 {
			labs = append(labs, lab)
		}
	}
	return labs
}

// RecoveryReport is what `bench recovery` prints.
type RecoveryReport struct {
	Stamp
	Series []*RecoverySeries `json:"series"`
	// LeftAlone are dead nodes without recovery for which nothing was done.
	LeftAlone []LeftAlone `json:"leftAlone,omitempty"`
	Machine   string      `json:"machine"`
	Seconds   float64     `json:"seconds"`
}

// LeftAlone is how a dead node's pod fared without recovery while nothing was done.
type LeftAlone struct {
	Nodes string `json:"nodes"`
	// Seconds from the power cut until the pod was looked at.
	Seconds float64 `json:"seconds"`
	// Node is where the pod was then, and Replaced says whether it was another pod.
	Node     string `json:"node"`
	Replaced bool   `json:"replaced"`
	// Terminating is when the pod was deleted, in seconds after the power cut; nil if it was not.
	Terminating *float64 `json:"terminating,omitempty"`
	// Attached are the VolumeAttachments of the dead node that no component was deleting.
	Attached int `json:"attached"`
}

func (l LeftAlone) String() string {
	stands, deleted := "not recovered", "was not deleted"
	if l.Replaced {
		stands = "REPLACED"
	}
	if l.Terminating != nil {
		deleted = fmt.Sprintf("has been Terminating since %.0f s after the cut", *l.Terminating)
	}
	return fmt.Sprintf("power cut, %s nodes, without recovery, left alone: %s within %.0f s: the pod is on %s and %s; VolumeAttachments of the dead node: %d",
		l.Nodes, stands, l.Seconds, l.Node, deleted, l.Attached)
}

func (r *RecoveryReport) write(out io.Writer, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	for _, s := range r.Series {
		if err := s.write(out); err != nil {
			return err
		}
	}
	for _, node := range r.LeftAlone {
		if _, err := fmt.Fprintf(out, "%s\n\n", node); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s; %.0f s\n", r.Machine, r.Seconds)
	return err
}

// missed lists the series that did not meet their target, or had a failure.
func (r *RecoveryReport) missed() (missed []string) {
	for _, s := range r.Series {
		if s.Failures > 0 || s.Target != nil && !s.Target.Met {
			missed = append(missed, s.title())
		}
	}
	return missed
}

func (o recoveryOptions) run(command *cobra.Command) error {
	if err := o.check(); err != nil {
		return err
	}
	started := time.Now()
	say := func(format string, args ...any) {
		command.PrintErrf("[%6.1fs] %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
	}
	report := &RecoveryReport{Stamp: stampOf(command.Flags()), Machine: machine()}
	failed := stopped(command.Context(), o.measure(command.Context(), report, say))
	report.Seconds = time.Since(started).Seconds()
	if err := o.end(report, failed, command.OutOrStdout()); err != nil {
		return err
	}
	if missed := report.missed(); len(missed) > 0 && !o.noTargets {
		return fmt.Errorf("%d of %d series missed their target: %s", len(missed), len(report.Series), strings.Join(missed, "; "))
	}
	return nil
}

// end writes the report. One of a bench that failed is for a person to read: as JSON it would be stored as if it were whole.
func (o recoveryOptions) end(report *RecoveryReport, failed error, out io.Writer) error {
	if failed != nil && o.output == "json" {
		return failed
	}
	return errors.Join(failed, report.write(out, o.output))
}

// measure adds to the report what it found, also when it fails.
func (o recoveryOptions) measure(ctx context.Context, report *RecoveryReport, say func(string, ...any)) error {
	for _, lab := range o.labs() {
		lab.say = say
		say("%s", lab)
		if err := lab.measure(ctx, report); err != nil {
			return fmt.Errorf("%s: %w", lab, err)
		}
	}
	return nil
}
