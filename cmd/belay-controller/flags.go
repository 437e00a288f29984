package main

import (
	"time"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// flagDisableForce has another default with recovery.
const flagDisableForce = "disable-force-detach-on-timeout"

// Flags of kube-controller-manager that are ignored here.
const (
	flagSyncPeriod  = "attach-detach-reconcile-sync-period"
	flagDisableSync = "disable-attach-detach-reconcile-sync"
)

// helpWidth is the line width of the help.
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

// command returns the command line.
func command() *cobra.Command {
	o := &options{logging: logsapi.NewLoggingConfiguration()}
	cmd := &cobra.Command{
		Use:           "belay-controller [flags]",
		Short:         "Attach volumes to the nodes whose pods need them, and detach them",
		Long:          about,
		Version:       usage.Version(version),
		Args:          usage.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return usage.Wrap(err)
			}
			if err := o.startLogging(); err != nil {
				return usage.Wrap(err) // only invalid flags cause it
			}
			o.warn(cmd.Flags().Changed)
			o.complete()
			return run(cmd.Context(), o)
		},
	}
	cmd.SetOut(printable.Stdout)
	cmd.SetErr(printable.Stderr)
	cmd.SetFlagErrorFunc(usage.FlagError)
	group(cmd, o.flags())
	cmd.AddCommand(preflightCommand(), leaveCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}

// group adds flags to a command, and lists them by group in its help.
func group(cmd *cobra.Command, sets cliflag.NamedFlagSets) {
	for _, name := range sets.Order {
		cmd.Flags().AddFlagSet(sets.FlagSets[name])
	}

	cliflag.SetUsageAndHelpFunc(cmd, sets, helpWidth)
}

// flags returns the flags by group.
func (o *options) flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets
	f := sets.FlagSet("Controllers")
	f.StringSliceVar(&o.controllers, "controllers", []string{controllerAttachDetach},
		"The controllers to run: attachdetach attaches and detaches volumes; recovery proves that the machine of a silent node is off, and moves its volumes. recovery alone works beside kube-controller-manager's attach/detach controller.")
	f = sets.FlagSet("Attach and detach")
	f.DurationVar(&o.maxWaitForUnmount, "max-wait-for-unmount-duration", 6*time.Minute,
		"How long an unneeded volume may stay in use on a node that is not Ready before it is detached by force. The time counts from the detach request and continues through restarts. Nothing is forced while the node is Ready; after this time the volume is detached as soon as the node is not Ready or is deleted. In kube-controller-manager this is a constant.")
	f.BoolVar(&o.disableForce, flagDisableForce, false,
		"Never detach by force after max-wait-for-unmount-duration. A volume in use on a dead node then waits until the node has the taint node.kubernetes.io/out-of-service or recovers. With --controllers=attachdetach,recovery this is the default, because recovery detaches on proof: set it to false to detach on the timeout too. Even then a volume is kept while recovery knows that its machine runs.")
	o.disableForceFlag = f.Lookup(flagDisableForce)
	f.StringVar(&o.deletedNode, "deleted-node-policy", deletedNodeWait,
		"What to do with volumes in use on a node whose Node object was deleted: \"wait\" as for a node that is not Ready, or \"detach\" as soon as no pod needs the volume there. Use \"detach\" only if Nodes are deleted after their machine was terminated: a running machine could still write to the volume after it is attached to another node.")
	f.DurationVar(&o.syncPeriod, flagSyncPeriod, time.Minute,
		"Deprecated: ignored. There is no separate actual state of the world to compare with. At least 1s.")
	f.BoolVar(&o.disableSync, flagDisableSync, false, "Deprecated: ignored, for the same reason.")

	f.StringVar(&o.foreignWriter, "on-foreign-writer", foreignWriterHold,
		"What to do when another attach/detach controller is running: \"hold\" halts attach and detach until a restart, keeps the lease, and reports not ready; \"warn\" only logs it and emits events. The default is \"hold\".")

	f = sets.FlagSet("API server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, the in-cluster configuration is used.")
	f.Float32Var(&o.manager.QPS, "kube-api-qps", -1,
		"Average requests per second to the API server. 0 or less means no limit: the API server protects itself by priority and fairness. kube-controller-manager's default of 20 allows about seven attaches per second.")
	f.IntVar(&o.manager.Burst, "kube-api-burst", 30, "Burst of requests to the API server, if --kube-api-qps sets a limit.")

	o.recoveryFlags(&sets)
	o.leaderFlags(&sets)

	f = sets.FlagSet("Health, metrics and profiles")
	f.StringVar(&o.manager.HealthAddress, "health-probe-bind-address", "0",
		"Address (host:port) of /healthz and /readyz over HTTP; 0 disables it. A standby is ready when its caches are synced, a leader when it has caught up with the previous leader.")
	f.StringVar(&o.manager.MetricsAddress, "metrics-bind-address", "0", "Address (host:port) of /metrics; 0 disables it. docs/metrics.md lists the metrics.")
	f.BoolVar(&o.metricsSecure, "metrics-secure", true,
		"Serve /metrics over TLS, with a certificate that the process makes, and only to those who may get the path /metrics, as kube-controller-manager does: it creates a TokenReview and a SubjectAccessReview. If false, over HTTP and to everyone.")
	f.StringVar(&o.manager.ProfileAddress, "pprof-bind-address", "0", "Address (host:port) of /debug/pprof over HTTP; 0 disables it. Profiles expose memory contents: use a local address.")

	logsapi.AddFlags(o.logging, sets.FlagSet("Log"))
	f = sets.FlagSet("Other")
	f.BoolP("help", "h", false, "Print this help.")
	f.Bool("version", false, "Print the version.")
	return sets
}

func (o *options) leaderFlags(sets *cliflag.NamedFlagSets) {
	f := sets.FlagSet("Leader election")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "Hold a lease before acting. Required for more than one replica.")
	f.DurationVar(&o.manager.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"How long standbys wait after the last renewal before one of them takes over the lease.")
	f.DurationVar(&o.lease.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"How long the leader retries to renew its lease before it stops leading. Must be less than the lease duration.")
	f.DurationVar(&o.manager.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
		"Interval between attempts to acquire or renew the lease.")
	f.StringVar(&o.resourceLock, "leader-elect-resource-lock", "leases", "Resource type of the lock; only leases are supported.")
	f.StringVar(&o.lease.Name, "leader-elect-resource-name", "", "Name of the lease. If empty, "+kube.FieldManager+"; with --controllers=recovery, belay-recovery, or belay-recovery-ROLE for a single role.")
	f.StringVar(&o.lease.Namespace, "leader-elect-resource-namespace", "kube-system", "Namespace of the lease.")
}
