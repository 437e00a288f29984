package attacher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	libconfig "github.com/kubernetes-csi/csi-lib-utils/config"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	libleader "github.com/kubernetes-csi/csi-lib-utils/leaderelection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_* metrics
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // workqueue_* metrics
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/usage"
)

// maxDrain bounds how long a shutdown waits for calls in flight. A pod is killed after 30 s by default, and recording
// the results and releasing the lease take some of that. Tests raise it.
var maxDrain = 20 * time.Second

// readyPath serves the readiness probe.
const readyPath = "/readyz"

// RunSidecar starts up in csi-attacher's order and runs until ctx is done. With leader election it always returns an
// error, because csi-attacher then always exits with status 1: ErrShutDown if nothing failed.
func RunSidecar(ctx context.Context, o *Options) error {
	if err := o.check(ctx); err != nil {
		return usage.Wrap(err)
	}
	config, err := libconfig.BuildConfig(o.Common.KubeConfig, *o.Common)
	if err != nil {
		return fmt.Errorf("build the Kubernetes client's configuration: %w", err)
	}
	go logUnreachable(ctx, config)
	config = kube.WithProtobuf(config)
	config.QPS = -1 // the attacher limits its requests itself; the lease is not limited
	connection.SetMaxGRPCLogLength(o.MaxGRPCLogLength)
	traces, stopTraces := telemetry.StartTraces(ctx, "belay-attacher", o.Version)
	defer stopTraces()
	mux, health := http.NewServeMux(), newHealth()
	if err := o.serve(ctx, mux, health); err != nil {
		return err
	}
	driver, manager, err := connect(ctx, o)
	if err != nil {
		return err
	}
	defer driver.Close()
	manager.RegisterToServer(mux, o.Common.MetricsPath)
	lease, err := o.lease(config, driver.Name)
	if err != nil {
		return err
	}
	permit := func() error { return nil }
	if lease != nil {
		config, permit = lease.Guard(config), lease.Permit
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create the Kubernetes client: %w", err)
	}
	controller, err := driver.Controller(ctx, permit)
	if err != nil {
		return err
	}
	a, err := New(Config{
		Client: client, QPS: float32(o.Common.KubeAPIQPS), Burst: o.Common.KubeAPIBurst, Driver: driver.Name, Controller: controller,
		Timeout: o.Timeout, RetryStart: o.RetryIntervalStart, RetryMax: o.RetryIntervalMax, Resync: o.Resync,
		AnnotateCalls: o.AnnotateCalls, ReconcileSync: o.ReconcileSync, MaxEntries: o.MaxEntries,
		EarlyOKFor:       earlyOKFor(driver.Name),
		ReconcileMetrics: telemetry.NewReconcile(legacyregistry.Registerer()),
		Metrics:          telemetry.NewAttacher(legacyregistry.Registerer()),
		Traces:           traces,
		WorkerThreads:    int(o.WorkerThreads), DefaultFSType: o.DefaultFSType, DrainTimeout: min(o.Timeout, maxDrain),
	})
	if err != nil {
		return err
	}
	health.found(driver, a, lease)
	return o.attach(ctx, a, driver, lease, health)
}

// logUnreachable logs that the API server does not respond: client-go would report it only after most of a minute. Like
// csi-attacher, the process keeps waiting.
func logUnreachable(ctx context.Context, config *rest.Config) {
	if err := kube.Reach(ctx, config); err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "API server does not respond, waiting for it", "remedy", "check that it is running and that its address and certificate authority are right")
	}
}

// check rejects what csi-attacher rejects, and invalid values.
func (o *Options) check(ctx context.Context) error {
	if o.Common.MetricsAddress != "" && o.Common.HttpEndpoint != "" {
		return errors.New("only one of `--metrics-address` and `--http-endpoint` can be set")
	}
	if o.WorkerThreads == 0 {
		return errors.New("--worker-threads is 0, but must be greater than zero")
	}
	if o.Common.KubeAPIQPS > 0 && o.Common.KubeAPIBurst < 1 {
		return fmt.Errorf("--kube-api-burst is %d, but must be at least 1 when --kube-api-qps limits the rate", o.Common.KubeAPIBurst)
	}
	if err := o.checkValues(); err != nil {
		return err
	}
	for _, name := range o.ignored {
		log.FromContext(ctx).Info("Ignoring obsolete flag", "flag", name)
	}
	for gate := range o.FeatureGates {
		if !slices.Contains(knownGates, gate) {
			log.FromContext(ctx).Info("Ignoring unknown feature gate", "gate", gate)
		}
	}
	return nil
}

// connect waits for the driver and reads its name. The metrics of a driver for migrated in-tree volumes have one more
// label, which has to be set before the connection is made.
func connect(ctx context.Context, o *Options) (*csi.Driver, metrics.CSIMetricsManager, error) {
	manager := metrics.NewCSIMetricsManager("")
	driver, err := csi.Connect(ctx, o.Common.CSIAddress, manager, o.Timeout)
	if err == nil && csitrans.New().IsMigratedCSIDriverByName(driver.Name) {
		driver.Close()
		manager = metrics.NewCSIMetricsManagerWithOptions(driver.Name, metrics.WithMigration())
		driver, err = csi.Connect(ctx, o.Common.CSIAddress, manager, o.Timeout)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w; check that the driver is running and that --csi-address is its socket", err)
	}
	manager.SetDriverName(driver.Name)
	manager.WithAdditionalRegistry(legacyregistry.DefaultGatherer)
	log.FromContext(ctx).Info("Connected to CSI driver", "driver", driver.Name)
	return driver, manager, nil
}

// serve serves health and metrics if an address is set. The process ends if it cannot do so, because it could not be
// monitored.
func (o *Options) serve(ctx context.Context, mux *http.ServeMux, health *health) error {
	address := o.Common.MetricsAddress
	if address == "" {
		address = o.Common.HttpEndpoint
	}
	if address == "" {
		return nil
	}
	mux.Handle(readyPath, healthz.CheckHandler{Checker: health.ready})
	// Like csi-attacher, not at the deprecated --metrics-address.
	if o.Common.LeaderElection && o.Common.HttpEndpoint != "" {
		mux.Handle(libleader.HealthCheckerAddress, healthz.CheckHandler{Checker: health.leader.Check})
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		log.FromContext(ctx).Info("Serving metrics", "address", address, "path", o.Common.MetricsPath)
		if err := server.Serve(listener); err != nil {
			log.FromContext(ctx).Error(err, "Failed to serve metrics", "address", address)
			klog.FlushAndExit(klog.ExitFlushTimeout, usage.StatusFailed)
		}
	}()
	return nil
}

// health reports liveness and readiness.
type health struct {
	leader *leaderelection.HealthzAdaptor
	known  atomic.Pointer[func() error] // readiness; nil until the driver is connected
}

func newHealth() *health {
	return &health{leader: leaderelection.NewLeaderHealthzAdaptor(libleader.DefaultHealthCheckTimeout)}
}

// found sets what readiness depends on.
func (h *health) found(driver *csi.Driver, a *Attacher, lease *kube.Lease) {
	h.known.Store(new(func() error {
		if !driver.Present() {
			return errors.New("the CSI driver is not connected")
		}
		if lease != nil && lease.Denied() != nil {
			return lease.Denied()
		}
		return a.cachesSynced()
	}))
}

// ready returns nil if the process could lead: a standby with synced caches is ready, a process without a connected
// driver is not.
func (h *health) ready(*http.Request) error {
	if known := h.known.Load(); known != nil {
		return (*known)()
	}
	return errors.New("the CSI driver has not been connected yet")
}
