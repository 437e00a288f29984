package attacher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	libconfig "github.com/kubernetes-csi/csi-lib-utils/config"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/leaderelection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_* metrics
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // workqueue_* metrics
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
)

// leasePrefix and the driver's name make the name of the lease, as csi-attacher's:
// one of both kinds is the leader.
const leasePrefix = "external-attacher-leader-"

// maxDrain bounds how long calls in flight may take to end at shutdown. A pod
// has 30 s by default before it is killed; recording and the lease need some.
const maxDrain = 20 * time.Second

// RunSidecar starts up in csi-attacher's order and attaches until ctx ends. With
// leader election the process ends inside with 1 when the lease is given up or
// lost, as csi-attacher's does.
func RunSidecar(ctx context.Context, o *Options) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	config, err := libconfig.BuildConfig(o.Common.KubeConfig, *o.Common)
	if err != nil {
		return fmt.Errorf("build the Kubernetes client's configuration: %w", err)
	}
	client, err := kubernetes.NewForConfig(kube.Wire(config))
	if err != nil {
		return fmt.Errorf("make the Kubernetes client: %w", err)
	}
	connection.SetMaxGRPCLogLength(o.MaxGRPCLogLength)
	driver, conn, manager, err := connect(ctx, o)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	mux := http.NewServeMux()
	o.serve(ctx, mux, manager)
	controller, err := csi.NewController(ctx, conn)
	if err != nil {
		return err
	}
	a, err := New(Config{
		Client: client, Driver: driver, Controller: controller,
		Timeout: o.Timeout, RetryStart: o.RetryIntervalStart, RetryMax: o.RetryIntervalMax, Resync: o.Resync,
		WorkerThreads: int(o.WorkerThreads), DefaultFSType: o.DefaultFSType, DrainTimeout: min(o.Timeout, maxDrain),
	})
	if err != nil {
		return err
	}
	return o.lead(ctx, a, config, mux)
}

// check refuses what csi-attacher refuses.
func (o *Options) check(ctx context.Context) error {
	if o.Common.MetricsAddress != "" && o.Common.HttpEndpoint != "" {
		return errors.New("only one of `--metrics-address` and `--http-endpoint` can be set")
	}
	if o.WorkerThreads == 0 {
		return errors.New("option -worker-threads must be greater than zero")
	}
	for gate := range o.FeatureGates {
		if !slices.Contains(knownGates, gate) {
			klog.FromContext(ctx).Info("Feature gate is not known and has no effect", "gate", gate)
		}
	}
	return nil
}

// connect waits for the driver and asks for its name. The calls to a driver that
// in-tree volumes were migrated to carry one more label in the metrics, which has
// to be known when the connection is made.
func connect(ctx context.Context, o *Options) (string, *grpc.ClientConn, metrics.CSIMetricsManager, error) {
	manager := metrics.NewCSIMetricsManager("")
	conn, err := csi.Connect(ctx, o.Common.CSIAddress, manager, o.Timeout)
	if err != nil {
		return "", nil, nil, err
	}
	driver, err := csi.DriverName(ctx, conn)
	if err == nil && csitrans.New().IsMigratedCSIDriverByName(driver) {
		_ = conn.Close()
		manager = metrics.NewCSIMetricsManagerWithOptions(driver, metrics.WithMigration())
		conn, err = csi.Connect(ctx, o.Common.CSIAddress, manager, o.Timeout)
	}
	if err != nil {
		return "", nil, nil, err
	}
	manager.SetDriverName(driver)
	manager.WithAdditionalRegistry(legacyregistry.DefaultGatherer)
	klog.FromContext(ctx).Info("Connected to the CSI driver", "driver", driver)
	return driver, conn, manager, nil
}

// serve answers metrics, and later the lease's health, if an address is given. A
// process that cannot do so ends: nobody would see what it does.
func (o *Options) serve(ctx context.Context, mux *http.ServeMux, manager metrics.CSIMetricsManager) {
	address := o.Common.MetricsAddress
	if address == "" {
		address = o.Common.HttpEndpoint
	}
	if address == "" {
		return
	}
	manager.RegisterToServer(mux, o.Common.MetricsPath)
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		klog.FromContext(ctx).Info("Serving metrics", "address", address, "path", o.Common.MetricsPath)
		if err := server.ListenAndServe(); err != nil {
			klog.FromContext(ctx).Error(err, "Serve metrics", "address", address)
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		}
	}()
}

// States of lead.
const (
	standby int32 = iota
	leading
	ending
)

// lead runs the attacher while it holds the lease, or at once without leader
// election. When ctx ends the calls in flight end first and the lease is given
// up after; a standby gives up at once.
func (o *Options) lead(ctx context.Context, a *Attacher, config *rest.Config, mux *http.ServeMux) error {
	// The lease and the caches outlive ctx until the last result is recorded.
	lease, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	a.Warm(lease)

	var state atomic.Int32
	stopWatching := context.AfterFunc(ctx, func() {
		if state.CompareAndSwap(standby, ending) {
			giveUp()
		}
	})
	defer stopWatching()
	var failed error
	run := func(held context.Context) {
		defer giveUp()
		if !state.CompareAndSwap(standby, leading) {
			return
		}
		held, cancel := context.WithCancel(held)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		if failed = a.Run(held); failed != nil {
			klog.FromContext(ctx).Error(failed, "Attacher failed")
		}
	}
	leaderelection.RunWithLeaderElection(lease, config, *o.Common, run, leasePrefix+a.driver, mux, true)
	return failed
}
