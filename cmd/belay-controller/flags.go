package main

import (
	"time"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/usage"
)

// Flags that upstream has and that do nothing here.
const (
	flagSyncPeriod  = "attach-detach-reconcile-sync-period"
	flagDisableSync = "disable-attach-detach-reconcile-sync"
)

// helpWidth is where the help breaks its lines, in characters.
const helpWidth = 110

const about = `Attaches volumes to the nodes whose pods need them, and detaches them when no pod
does: the attach/detach controller of kube-controller-manager, which must be
disabled first:

  kube-controller-manager --controllers=*,-persistentvolume-attach-detach-controller ...
  belay-controller preflight    # checks that it is disabled and that nothing else is missing
  belay-controller --kubeconfig=...

All state is in the API server: to roll back, stop belay-controller and enable the other one.

Exit status:
  0  stopped by SIGTERM or Ctrl-C, and the lease was released
  1  failed: the lease was lost, or the controller could not start; the last line has the reason
  2  wrong usage: an unknown flag, or an invalid value`

// command is the command line.
func command() *cobra.Command {
	o := &options{logging: logsapi.NewLoggingConfiguration()}
	cmd := &cobra.Command{
		Use:           "belay-controller [flags]",
		Short:         "Attach volumes to the nodes whose pods need them, and detach them",
		Long:          about,
		Version:       version,
		Args:          usage.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return usage.Wrap(err)
			}
			if err := o.startLogging(); err != nil {
				return usage.Wrap(err) // only its flags can be wrong
			}
			o.warn(cmd.Flags().Changed)
			o.complete()
			return run(cmd.Context(), o)
		},
	}
	cmd.SetFlagErrorFunc(usage.FlagError)
	group(cmd, o.flags())
	cmd.AddCommand(preflightCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}

// group gives the command its flags, and a help that lists them by group.
func group(cmd *cobra.Command, sets cliflag.NamedFlagSets) {
	for _, name := range sets.Order {
		cmd.Flags().AddFlagSet(sets.FlagSets[name])
	}

	cliflag.SetUsageAndHelpFunc(cmd, sets, helpWidth)
}

// flags lists the flags by group.
func (o *options) flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets
	f := sets.FlagSet("Attach and detach")
	f.DurationVar(&o.maxWaitForUnmount, "max-wait-for-unmount-duration", 6*time.Minute,
		"How long an unwanted volume may stay in use on a node that is not Ready before it is detached by force. The clock starts when the detach first has to wait, and continues through restarts. While the node is Ready, nothing is forced; after that time the volume is detached as soon as the node is not Ready or is deleted. For kube-controller-manager this is a constant.")
	f.BoolVar(&o.disableForce, "disable-force-detach-on-timeout", false,
		"Never detach by force after that time: a volume in use on a dead node then waits for the taint node.kubernetes.io/out-of-service, or for the node.")
	f.StringVar(&o.deletedNode, "deleted-node-policy", deletedNodeWait,
		"Volumes that were in use on a node whose object was deleted: \"wait\" as for a node that is not Ready, or \"detach\" at once, which is right only where nodes are deleted after their machine is gone: a machine that still runs could then write beside the next one.")
	f.DurationVar(&o.syncPeriod, flagSyncPeriod, time.Minute,
		"Deprecated: ignored. There is no second record of what is attached to compare with. At least 1s.")
	f.BoolVar(&o.disableSync, flagDisableSync, false, "Deprecated: ignored, for the same reason.")

	f.StringVar(&o.foreignWriter, "on-foreign-writer", foreignWriterHold,
		"What to do when another attach/detach controller is running: \"hold\" halts attach and detach until a restart, keeps the lease, and reports not ready; \"warn\" only logs it and emits events. The default is \"hold\".")

	f = sets.FlagSet("API server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig file; empty for the cluster that this runs in.")
	f.Float32Var(&o.manager.QPS, "kube-api-qps", -1,
		"Requests per second to the API server, on average; not above 0 for no limit: the API server's priority and fairness shares its time out. kube-controller-manager's 20 allow about seven attaches a second.")
	f.IntVar(&o.manager.Burst, "kube-api-burst", 30, "Requests to the API server at once, where --kube-api-qps sets a limit.")

	o.leaderFlags(&sets)

	f = sets.FlagSet("Health, metrics and profiles")
	f.StringVar(&o.manager.HealthAddress, "health-probe-bind-address", "0",
		"host:port of /healthz and /readyz over HTTP; 0 for none. Ready is a standby that has read everything, and a leader that has caught up with the one before.")
	f.StringVar(&o.manager.MetricsAddress, "metrics-bind-address", "0", "host:port of /metrics over HTTP; 0 for none. docs/metrics.md lists them.")
	f.StringVar(&o.manager.ProfileAddress, "pprof-bind-address", "0", "host:port of /debug/pprof over HTTP; 0 for none. It shows memory contents: keep it local.")

	logsapi.AddFlags(o.logging, sets.FlagSet("Log"))
	f = sets.FlagSet("Other")
	f.BoolP("help", "h", false, "Print this text.")
	f.Bool("version", false, "Print the version.")
	return sets
}

func (o *options) leaderFlags(sets *cliflag.NamedFlagSets) {
	f := sets.FlagSet("Leader election")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "Act only while holding a lease. Needed with more than one replica.")
	f.DurationVar(&o.manager.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"How long the others wait for a leader that no longer renews its lease.")
	f.DurationVar(&o.lease.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"How long after its last renewal the leader still writes. Must be less than the lease duration.")
	f.DurationVar(&o.manager.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
		"How often the lease is asked for and renewed.")
	f.StringVar(&o.resourceLock, "leader-elect-resource-lock", "leases", "Kind of the lock: leases.")
	f.StringVar(&o.lease.Name, "leader-elect-resource-name", kube.FieldManager, "Name of the lease.")
	f.StringVar(&o.lease.Namespace, "leader-elect-resource-namespace", "kube-system", "Namespace of the lease.")
}
