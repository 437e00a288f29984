package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// version is set at build time.
var version = "unknown"

const defaultRoot = "/var/lib/kubelet"

// options are the flags.
type options struct {
	kubeconfig     string
	nodeName       string
	rootDir        string
	healthAddress  string
	metricsAddress string
	statsPeriod    time.Duration
	// runtimeEndpoint is the CRI endpoint of the container runtime; empty if the runtime uses pod locks.
	runtimeEndpoint string
	verbosity       int
}

func (o *options) command(run func() error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "belay-node --node-name NAME [flags]",
		Short: "Mounts and unmounts the CSI volumes of the pods of one node that has no kubelet.",
		Long: `Mounts and unmounts the CSI volumes of the pods that are bound to one node.

CSI drivers and their node-driver-registrars are used as they are: they find
ROOT/plugins, ROOT/plugins_registry and ROOT/pods as with kubelet. The program that runs the
pods creates the Node object and keeps it Ready.

Exit status:
  0  stopped by SIGTERM or Ctrl-C
  1  failed; the last line has the reason
  2  wrong usage: an unknown flag, or an invalid value`,
		Example: `  # Beside containerd, as a systemd unit or by hand.
  belay-node --node-name=edge-1 --kubeconfig=/etc/belay/kubeconfig \
    --container-runtime-endpoint=unix:///run/containerd/containerd.sock

  # With probes and metrics, and another root directory than kubelet's.
  belay-node --node-name=edge-1 --kubeconfig=/etc/belay/kubeconfig --root-dir=/var/lib/belay \
    --health-probe-bind-address=127.0.0.1:10268 --metrics-bind-address=127.0.0.1:10269`,
		Version: usage.Version(version), SilenceUsage: true, SilenceErrors: true,
		Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := o.check(); err != nil {
				return usage.Wrap(err)
			}
			if err := o.startLogging(); err != nil {
				return err
			}
			return run()
		},
	}
	cmd.SetOut(printable.Stdout)
	cmd.SetErr(printable.Stderr)
	cmd.SetFlagErrorFunc(usage.FlagError)
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without it, the service account of the pod this runs in")
	flags.StringVar(&o.nodeName, "node-name", "", "name of the Node object (required)")
	flags.StringVar(&o.rootDir, "root-dir", defaultRoot, "directory that CSI drivers know as kubelet's root; mounts below it must propagate")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", "0", `address for GET /healthz and /readyz, such as 127.0.0.1:10268; "0" disables it`)
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", "0", `address for GET /metrics, /healthz and /readyz over HTTP, such as 127.0.0.1:10269, or the same as for the probes; "0" disables it; docs/metrics.md lists the metrics`)
	flags.DurationVar(&o.statsPeriod, "volume-stats-agg-period", time.Minute, "interval of NodeGetVolumeStats calls for each volume, as in kubelet; a negative value disables them")
	flags.StringVar(&o.runtimeEndpoint, "container-runtime-endpoint", "", `CRI endpoint of the container runtime, for example unix:///run/containerd/containerd.sock. `+
		`When a pod is deleted or terminated, its volumes stay mounted until the runtime reports no ready sandbox of the pod and no container that has not exited. `+
		`If the runtime does not respond, the volumes stay mounted. If the flag is empty, they stay mounted while any process holds a lock (flock) on ROOT/belay/pods/<pod UID>.lock: `+
		`a runtime without CRI must hold that lock from before it starts the first container of the pod until the last one has ended`)
	flags.IntVarP(&o.verbosity, "v", "v", 0, "log level: 0 or more")
	return cmd
}

// startLogging sets up one log on stderr for belay and client-go.
func (o *options) startLogging() error {
	logs.InitLogs()
	config := logsapi.NewLoggingConfiguration()
	config.Verbosity = logsapi.VerbosityLevel(o.verbosity)
	if err := logsapi.ValidateAndApplyWithOptions(config, &logsapi.LoggingOptions{ErrorStream: printable.Stderr, InfoStream: printable.Stdout}, nil); err != nil {
		return fmt.Errorf("configure logging: %w", err)
	}
	return nil
}

// check rejects invalid values.
func (o *options) check() error {
	if o.nodeName == "" {
		return errors.New("--node-name is required")
	}
	if problems := validation.IsDNS1123Subdomain(o.nodeName); len(problems) > 0 {
		return fmt.Errorf("--node-name %q cannot be the name of a Node: %s", o.nodeName, strings.Join(problems, "; "))
	}
	if err := errors.Join(usage.CheckAddress("health-probe-bind-address", o.healthAddress), usage.CheckAddress("metrics-bind-address", o.metricsAddress)); err != nil {
		return err
	}
	if err := errors.Join(usage.CheckVerbosity("v", o.verbosity), o.checkRuntimeEndpoint()); err != nil {
		return err
	}
	if !filepath.IsAbs(o.rootDir) || filepath.Clean(o.rootDir) == "/" {
		return fmt.Errorf("--root-dir %q must be an absolute path other than /, for example %s", o.rootDir, defaultRoot)
	}
	return nil
}

func (o *options) checkRuntimeEndpoint() error {
	if o.runtimeEndpoint == "" {
		return nil
	}
	if _, err := containers.SocketPath(o.runtimeEndpoint); err != nil {
		return fmt.Errorf("--container-runtime-endpoint is %q, but must be of the form unix:///path, or empty if the runtime uses pod locks", o.runtimeEndpoint)
	}
	return nil
}

// restConfig returns the connection to the API server.
func (o *options) restConfig() (*rest.Config, error) {
	if o.kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig is required outside a cluster: use the service account of the pod: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("it has no cluster; set --kubeconfig to a file with a cluster, a user and a current context")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %q: %w", o.kubeconfig, err)
	}
	return config, nil
}
