// Package worker runs what the rooms of the node agent do in the background: the keys of a queue, each by one goroutine at a time, and what a
// signal or an object of the API server asks for.
package worker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/kube"
)

// APITimeout bounds one call to the API server, which would otherwise end only with the connection.
const APITimeout = 30 * time.Second

// Serve processes the keys of a queue concurrently, each key by one goroutine at a time, until the queue is shut down and all of them
// have returned.
func Serve[K comparable](queue workqueue.TypedInterface[K], work func(K)) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		key, down := queue.Get()
		if down {
			return
		}
		running.Go(func() {
			defer queue.Done(key)
			work(key)
		})
	}
}

// Signal wakes a single worker. Signals during its work are combined into one.
type Signal chan struct{}

// NewSignal returns a signal that has not been given.
func NewSignal() Signal { return make(Signal, 1) }

// Wake gives the signal. It never blocks.
func (s Signal) Wake() { kube.Signal(s) }

// Serve runs work at each signal until ctx ends, and again after a back-off if it fails. failures counts its failures in a row.
func (s Signal) Serve(ctx context.Context, work func(failures int) error) {
	failures := 0
	for {
		var retry <-chan time.Time
		if failures > 0 {
			retry = time.After(BackOff(failures))
		}
		select {
		case <-ctx.Done():
			return
		case <-s:
		case <-retry:
		}
		if work(failures) == nil {
			failures = 0
		} else {
			failures++
		}
	}
}

// BackOff is the delay after a failed call to the API server: 20 ms, doubled up to 5 s, plus up to a fifth.
func BackOff(failures int) time.Duration {
	wait := 5 * time.Second
	if failures < 9 {
		wait = min(wait, 20*time.Millisecond<<(failures-1))
	}
	return wait + time.Duration(rand.Int64N(int64(wait)/5)) //nolint:gosec // spreads retries
}

// NewInformer creates an informer for the selected objects of one resource. Its first list is consistent (a quorum read), also from an
// API server without watch-list: a stale list may lack a pod, whose volumes would be unmounted.
func NewInformer(client rest.Interface, resource string, selector fields.Selector, example runtime.Object) cache.SharedIndexInformer {
	source := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, selector)
	list := source.ListWithContextFunc
	source.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.ResourceVersion == "0" { // any version in the watch cache
			options.ResourceVersion = ""
		}
		return list(ctx, options)
	}
	informer := cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	_ = informer.SetTransform(func(object any) (any, error) {
		if meta, ok := object.(metav1.Object); ok {
			meta.SetManagedFields(nil)
		}
		if pod, ok := object.(*corev1.Pod); ok { // decoded just now
			kube.CutPod(pod)
		}
		return object, nil
	})
	return informer
}
