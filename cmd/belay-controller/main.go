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
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

func main() {
	o := options{}
	cmd := o.command(func() error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return run(ctx, o)
	})
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "belay-controller:", err)
		os.Exit(1)
	}
}

// run serves until the context ends or the lease is lost.
func run(ctx context.Context, o options) error {
	o.logging()
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	mgr, err := kube.NewManager(config, o.manager)
	if err != nil {
		return err
	}
	// Upstream's policy: the taint is the word of whoever set it.
	if err := attachdetach.Setup(ctx, mgr, attachdetach.Options{Policy: attachment.Policy{OutOfService: true}}); err != nil {
		return err
	}
	if err := probes(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func probes(mgr manager.Manager) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("ping", healthz.Ping)
}

// restConfig is the cluster of the kubeconfig file, or the one that we run in.
func (o *options) restConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %q: %w", o.kubeconfig, err)
	}
	config.UserAgent = "belay-controller"
	return config, nil
}
