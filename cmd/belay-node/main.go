// Command belay-node does for the CSI volumes of one node what kubelet's volume
// manager and plugin manager do, for nodes that have no kubelet.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // requests to the API server
	"k8s.io/klog/v2"

	"belay.dev/belay/node"
)

func main() {
	o := options{}
	cmd := o.command(func() error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return run(ctx, o)
	})
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "belay-node:", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig %q: %w", o.kubeconfig, err)
	}
	config.UserAgent = "belay-node"
	containers, err := o.containers()
	if err != nil {
		return err
	}
	agent, err := node.New(node.Config{
		NodeName: o.nodeName, Root: o.rootDir, RESTConfig: config, Logger: klog.Background(),
		Metrics: legacyregistry.Registerer(), StatsPeriod: o.statsPeriod, Containers: containers,
	})
	if err != nil {
		return err
	}
	serve, err := o.listen(ctx, handlers{ready: agent.Ready, metrics: legacyregistry.DefaultGatherer})
	if err != nil {
		return err
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return agent.Run(ctx) })
	running.Go(func() error { return agent.FollowPods(ctx) })
	running.Go(func() error { return serve(ctx) })
	return running.Wait()
}
