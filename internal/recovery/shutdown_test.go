package recovery

import (
	"context"
	"strconv"
	"testing"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// TestEndsWhileBusy: a process that is stopped while its nodes change ends, and releases its lease. With controller-runtime's own queue it can
// wait for its workers until the grace period is over (kubernetes-sigs/controller-runtime#3538).
func TestEndsWhileBusy(t *testing.T) {
	cluster.Start(t)
	for round := range 20 {
		mgr, err := kube.NewManager(cluster.Config(), kube.ManagerConfig{MetricsAddress: "0", HealthAddress: "0"})
		must(t, err)
		var queue workqueue.TypedRateLimitingInterface[reconcile.Request]
		nodes := source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue = q
			for i := range agents {
				q.Add(request(strconv.Itoa(i))[0])
			}
			return nil
		})
		busy := make(chan struct{}, 1)
		change := reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			queue.Add(r)
			select {
			case busy <- struct{}{}:
			default:
			}
			return reconcile.Result{}, nil
		})
		must(t, build(mgr, "busy-"+strconv.Itoa(round), agents).WatchesRawSource(nodes).Complete(change))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		wait.For(t, "the first decision", busy)
		stop()
		must(t, wait.For(t, "the process to end", ended))
	}
}
