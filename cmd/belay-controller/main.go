// Command belay-controller attaches volumes to the nodes whose pods need them and detaches them when no pod does.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/usage"
)

// version is set at build time.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	cmd := command()
	err := cmd.ExecuteContext(ctx)
	stop()
	klog.Flush()
	if err != nil {
		cmd.PrintErrln("belay-controller:", err)
		os.Exit(usage.Status(err))
	}
}

// run runs the controller until ctx is done or the lease is lost.
func run(ctx context.Context, o *options) error {
	klog.Background().Info("Starting belay-controller", "version", version)
	traces, stopTraces := telemetry.StartTraces(ctx, "belay-controller", version)
	defer stopTraces()
	config, err := daemonConfig(ctx, o.kubeconfig)
	if err != nil {
		return err
	}
	clients, err := readers(config)
	if err != nil {
		return err
	}
	measured := telemetry.NewController(metrics.Registry)
	o.lease.Renewed = measured.LeaseRenewed
	o.manager.CountWrite = measured.Write
	clock := &kube.ServerClock{}
	o.manager.Clock = clock
	mgr, err := kube.NewManager(config, o.manager)
	if err != nil {
		return err
	}
	proofs := &recovery.Proofs{} // stays empty without recovery, and in a dry run
	if o.runs(controllerRecovery) {
		if err := o.setupRecovery(mgr, proofs); err != nil {
			return err
		}
	}
	if o.runs(controllerAttachDetach) {
		err = attachdetach.Setup(ctx, mgr, attachdetach.Options{
			Policy: o.policy(), Metrics: measured, Traces: traces,
			WarnOfRivals: o.foreignWriter == foreignWriterWarn, MayLead: o.mayLead(clients), Settle: settle, Clock: clock, Proofs: proofs,
			Records: o.records(),
		})
		if err != nil {
			return err
		}
	}
	return serve(ctx, mgr, clients, o.watched())
}
