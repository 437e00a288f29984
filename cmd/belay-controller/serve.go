package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"belay.dev/belay/internal/preflight"
)

const (
	// abandonStart and abandonStop bound the wait for the manager after a signal: before its caches are synced, and
	// after, which is longer than its own shutdown timeout.
	abandonStart, abandonStop = 2 * time.Second, 40 * time.Second
)

// fillPatience is how long the caches may take to sync before permissions are checked; tests shorten it. A big cluster
// may take longer.
var fillPatience = time.Minute

// serve runs the manager until ctx is done.
//
// In controller-runtime v0.24.1, and in its main branch of August 2026, a manager whose context ends before its caches
// are synced does not return and uses a full core: the loop of runnableGroup.Start (pkg/manager/runnable_group.go:191)
// ignores the context. The fix, kubernetes-sigs/controller-runtime#3440, was not merged. At that time nothing was
// written and no lease is held, so the process may exit.
func serve(ctx context.Context, mgr manager.Manager, clients kubernetes.Interface, watched []authorizationv1.ResourceAttributes) error {
	ended, full := make(chan error, 1), make(chan struct{})
	go func() { ended <- mgr.Start(ctx) }()
	go func() {
		if mgr.GetCache().WaitForCacheSync(ctx) {
			close(full)
		}
	}()
	late := time.After(fillPatience)
	for {
		select {
		case err := <-ended:
			return err
		case <-full:
			late, full = nil, nil
		case <-late:
			if err := checkRights(ctx, clients, watched); err != nil {
				return err
			}
		case <-ctx.Done():
			patience := abandonStop
			if full != nil {
				patience = abandonStart
			}
			select {
			case err := <-ended:
				return err
			case <-time.After(patience):
				return nil
			}
		}
	}
}

// checkRights returns an error that names the permissions without which the caches cannot sync.
func checkRights(ctx context.Context, clients kubernetes.Interface, watched []authorizationv1.ResourceAttributes) error {
	missing, err := preflight.MissingRights(ctx, clients, watched)
	if len(missing) > 0 {
		return fmt.Errorf("cannot start without the rights to %s: see deploy/belay-controller/belay-controller.yaml, and deploy/belay-recovery for recovery", strings.Join(missing, ", "))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Caches are not full yet and the rights could not be checked")
		return nil
	}
	klog.FromContext(ctx).Info("Caches are not full yet although no rights are missing")
	return nil
}
