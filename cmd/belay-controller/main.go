// Command belay-controller attaches volumes to the nodes whose pods need them and
// detaches them when nobody does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/heap"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// version is set by the linker.
var version = "unknown"

// growth of the heap: room for what a burst of attaches makes in a small cluster.
var growth = heap.Growth{Room: 64 << 20, Least: 40}

func main() {
	heap.Tune(growth, os.Getenv("GOGC"))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "belay-controller:", err)
		os.Exit(1)
	}
}

// run serves until the context ends or the lease is lost.
func run(ctx context.Context, o *options) error {
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	clients, err := readers(o.kubeconfig)
	if err != nil {
		return err
	}
	measured := telemetry.NewController(metrics.Registry)
	o.lease.Renewed = measured.LeaseRenewed
	o.manager.CountWrite = measured.Write
	mgr, err := kube.NewManager(config, o.manager)
	if err != nil {
		return err
	}
	err = attachdetach.Setup(ctx, mgr, attachdetach.Options{
		Policy: o.policy(), Metrics: measured,
		WarnOfRivals: o.foreignWriter == foreignWriterWarn, MayLead: o.mayLead(clients),
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// restConfig is the cluster of the kubeconfig file, or the one that we run in.
func restConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %q: %w", kubeconfig, err)
	}
	// The API server makes the field manager of it: what stands before the slash.
	config.UserAgent = kube.FieldManager + "/" + version
	return config, nil
}
