package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "unknown"

// options are the command line.
type options struct {
	kubeconfig    string
	nodeName      string
	rootDir       string
	healthAddress string
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
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", "0", `address for GET /healthz, such as 127.0.0.1:10268; "0" turns it off`)
	own := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(own)
	flags.AddGoFlag(own.Lookup("v"))
	return cmd
}

// serveHealth answers that the process lives. What a volume waits for is told in events.
func serveHealth(ctx context.Context, address string) error {
	if address == "" || address == "0" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for health probes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health probes: %w", err)
	}
	return nil
}
