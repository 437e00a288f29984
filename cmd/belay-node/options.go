package main

import (
	"errors"
	"flag"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"belay.dev/belay/node"
)

// version is set by the linker.
var version = "unknown"

// options are the command line.
type options struct {
	kubeconfig     string
	nodeName       string
	rootDir        string
	healthAddress  string
	metricsAddress string
	statsPeriod    time.Duration
	// runtimeEndpoint is where the container runtime serves CRI; empty if it locks its pods.
	runtimeEndpoint string
}

func (o *options) command(run func() error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "belay-node --node-name NAME [flags]",
		Short: "Mounts and unmounts the CSI volumes of the pods of one node that has no kubelet.",
		Long: `Mounts and unmounts the CSI volumes of the pods that are bound to one node.

CSI drivers and their node-driver-registrars are used as they are: they find
ROOT/plugins, ROOT/plugins_registry and ROOT/pods as with kubelet. The Node
object is made, and kept Ready, by whoever runs the pods.`,
		Args: cobra.NoArgs, Version: version, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			if o.nodeName == "" {
				return errors.New("--node-name is required")
			}
			return run()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without it, the service account of the pod this runs in")
	flags.StringVar(&o.nodeName, "node-name", "", "name of the Node object (required)")
	flags.StringVar(&o.rootDir, "root-dir", "/var/lib/kubelet", "directory that CSI drivers know as kubelet's root; mounts below it must propagate")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", "0", `address for GET /healthz and /readyz, such as 127.0.0.1:10268; "0" turns it off`)
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", "0", `address for GET /metrics, /healthz and /readyz over HTTP, such as 127.0.0.1:10269, or the same as for the probes; "0" turns it off; docs/metrics.md lists the metrics`)
	flags.DurationVar(&o.statsPeriod, "volume-stats-agg-period", time.Minute, "how often drivers are asked how full each volume is, as kubelet's flag; negative turns it off")
	flags.StringVar(&o.runtimeEndpoint, "container-runtime-endpoint", "", `CRI endpoint of the container runtime, for example unix:///run/containerd/containerd.sock. `+
		`When a pod is deleted or terminated, its volumes stay mounted until the runtime reports no ready sandbox of the pod and no container that has not exited. `+
		`If the runtime does not respond, the volumes stay mounted. If the flag is empty, they stay mounted while any process holds a lock (flock) on ROOT/belay/pods/<pod UID>.lock: `+
		`a runtime without CRI must hold that lock from before it starts the first container of the pod until the last one has ended`)
	own := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(own)
	flags.AddGoFlag(own.Lookup("v"))
	return cmd
}

// containers are asked whether a pod has ended; nil: its lock says so.
func (o *options) containers() (node.Containers, error) {
	if o.runtimeEndpoint == "" {
		return nil, nil
	}
	return node.NewCRI(o.runtimeEndpoint)
}
