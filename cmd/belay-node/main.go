// Command belay-node replaces kubelet's volume manager and plugin manager for the CSI volumes of one node without a
// kubelet.
package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // requests to the API server
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/usage"
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
		cmd.PrintErrln("belay-node:", err)
		os.Exit(usage.Status(err))
	}
}

// run runs the agent until ctx is done.
func run(ctx context.Context, o options) error {
	log := kube.LimitLog(klog.Background())
	log.Info("Starting belay-node", "version", version, "node", o.nodeName, "containerRuntime", cmp.Or(o.runtimeEndpoint, "pod locks"))
	api, err := o.restConfig()
	if err != nil {
		return err
	}
	api.UserAgent = "belay-node"
	traces, stopTraces := telemetry.StartTraceProvider(ctx, "belay-node", version)
	defer stopTraces()
	config := node.Config{
		NodeName: o.nodeName, Root: o.rootDir, RESTConfig: api, Logger: log,
		Metrics: legacyregistry.Registerer(), StatsPeriod: o.statsPeriod, TracerProvider: traces,
	}
	checkRuntime := func(context.Context) {}
	if o.runtimeEndpoint != "" {
		cri, err := containers.NewCRI(o.runtimeEndpoint)
		if err != nil {
			return err
		}
		config.Containers, checkRuntime = cri, func(ctx context.Context) { logSilent(ctx, log, cri, o.runtimeEndpoint) }
	}
	agent, err := node.New(config)
	if err != nil {
		return err
	}
	serve, err := o.listen(ctx, handlers{ready: agent.Ready, metrics: legacyregistry.DefaultGatherer})
	if err != nil {
		return err
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { checkRuntime(ctx); return nil })
	running.Go(func() error { return agent.Run(ctx) })
	running.Go(func() error { return agent.FollowPods(ctx) })
	running.Go(func() error { return serve(ctx) })
	return running.Wait()
}
