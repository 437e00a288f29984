package recovery

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

const (
	// tickEvery is how often the leases are looked at. It is well below fencing.MaxTickGap.
	tickEvery = 500 * time.Millisecond
	// readWithin bounds a read that is only worth something while it is fresh.
	readWithin = time.Second
)

// listener knows for how long each node has been silent. All parts of a process share it.
type listener struct {
	*parts

	mu       sync.Mutex
	silences fencing.Silences
}

// tick looks at all leases. It counts as a tick only if the API server answered a read at quorum just now: silence during an outage of the
// API server is no silence of the nodes.
func (l *listener) tick(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	if err := l.live.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace(corev1.NamespaceNodeLease), client.Limit(1)); err != nil {
		return fmt.Errorf("list leases of nodes: %w", err)
	}
	leases := &coordinationv1.LeaseList{}
	if err := l.client.List(ctx, leases, client.InNamespace(corev1.NamespaceNodeLease), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list leases of nodes in the cache: %w", err)
	}
	l.forget(ctx, l.take(ctx, leases))
	return nil
}

// take records all leases, and returns the nodes that were heard and have none.
func (l *listener) take(ctx context.Context, leases *coordinationv1.LeaseList) []string {
	now, there := l.now(), make(map[string]bool, len(leases.Items))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silences.Tick(now) {
		log.FromContext(ctx).Info("Counting the silence of all nodes from now", "detail", "the API server or this process did not respond for a while")
	}
	for i := range leases.Items {
		there[leases.Items[i].Name] = true
		l.renewed(now, &leases.Items[i])
	}
	return l.silences.Missing(there)
}

// forget drops those of the nodes that have neither a Node object nor a NodeFence: nothing is decided about their silence any more.
func (l *listener) forget(ctx context.Context, nodes []string) {
	for _, name := range nodes {
		key := client.ObjectKey{Name: name}
		if !apierrors.IsNotFound(l.client.Get(ctx, key, &corev1.Node{})) || l.hasFence(ctx, name) {
			continue
		}
		l.mu.Lock()
		l.silences.Forget(name)
		l.mu.Unlock()
	}
}

func (l *listener) hasFence(ctx context.Context, node string) bool {
	fences, err := l.fencesOf(ctx, node)
	return err != nil || len(fences) > 0
}

// heard records a lease that was read from the API server itself.
func (l *listener) heard(lease *coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed(l.now(), lease)
}

func (l *listener) renewed(now time.Time, lease *coordinationv1.Lease) {
	var duration time.Duration
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	l.silences.Profile = l.Profile
	l.silences.Renewed(now, lease.Name, renewal(lease), duration)
}

// of returns how long a node has been silent, and how long it may be.
func (l *listener) of(node string) (silent, limit time.Duration, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silences.Of(l.now(), l.Profile, node)
}

// aliveSince returns since when a node has not been silent for its limit; zero if it never was.
func (l *listener) aliveSince(node string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silences.AliveSince(node)
}

// life returns that the boot which a Node shows runs, if its lease says so.
func (l *listener) life(shown fencing.Boot) fencing.Life {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silences.Life(l.now(), l.Profile, shown)
}

// renewal is kube.Renewal.
func renewal(lease *coordinationv1.Lease) string { return kube.Renewal(lease) }
