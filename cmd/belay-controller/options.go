package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
)

// options are the flags. Where kube-controller-manager has a flag for it, that is
// its name and default.
type options struct {
	kubeconfig  string
	verbosity   int
	leaderElect bool
	lease       kube.LeaseConfig
	manager     kube.ManagerConfig
}

func (o *options) command(run func() error) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "belay-controller",
		Short:         "Attach volumes to the nodes whose pods need them, and detach them",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { o.complete(); return run() },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig file; empty for the cluster that this runs in")
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log verbosity: 0 for steps taken and refused, 1 for every decision")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "Lead only while holding a lease; needed with more than one replica")
	f.DurationVar(&o.manager.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"How long others wait for a leader that no longer renews its lease")
	f.DurationVar(&o.lease.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"How long after its last renewal the leader still writes; must be less than the lease duration")
	f.DurationVar(&o.manager.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
		"How often the lease is asked for and renewed")
	f.StringVar(&o.lease.Namespace, "leader-elect-resource-namespace", "kube-system", "Namespace of the lease")
	f.StringVar(&o.lease.Name, "leader-elect-resource-name", "belay-controller", "Name of the lease")
	f.StringVar(&o.manager.HealthAddress, "health-probe-bind-address", "0",
		`host:port of /healthz and /readyz; "0" for none`)
	f.StringVar(&o.manager.MetricsAddress, "metrics-bind-address", "0", `host:port of /metrics; "0" for none`)
	return cmd
}

// complete derives what has no flag of its own.
func (o *options) complete() {
	if !o.leaderElect {
		return
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// The host alone would let two processes on it hold the lease at once.
	o.lease.Identity = host + "_" + uuid.NewString()
	o.manager.Lease = &o.lease
}

// logging makes one structured log on stderr of belay's, controller-runtime's and
// client-go's words.
func (o *options) logging() {
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-o.verbosity)})
	log.SetLogger(logr.FromSlogHandler(handler))
	klog.SetSlogLogger(slog.New(handler))
}
