package attachdetach

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
)

// kubelets tracks, for Nodes that were recreated while volumes were attached to their machines, whether the kubelet has
// been alive long enough to have sent a complete in-use list (attachment.SyncWindow). Its lease shows that the process
// runs, the condition Ready that its status reaches the API server.
type kubelets struct {
	mu          sync.Mutex
	leaseChecks map[string]leaseCheck // by node
}

// leaseCheck is the state of one kubelet.
type leaseCheck struct {
	uid    types.UID // of the Node
	began  time.Time
	next   time.Time // when the lease must have been renewed again
	lease  string    // resource version of the lease at the last check, or empty
	synced bool
}

// describe adds the state of the kubelet to the Node.
func (k *kubelets) describe(node *corev1.Node, n *attachment.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.leaseChecks[node.Name]
	if !ok || l.uid != node.UID {
		return
	}
	if n.ListSynced = l.synced; !l.synced {
		n.ListSyncDue, n.NextKubeletCheck = l.began.Add(attachment.SyncWindow), l.next
	}
}

// forget drops a deleted Node.
func (k *kubelets) forget(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.leaseChecks, node)
}

// reset restarts the checks when the Node is no longer Ready.
func (k *kubelets) reset(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.leaseChecks[node].synced {
		delete(k.leaseChecks, node)
	}
}

// recordLease records the resource version of the lease, empty if there is none, and its duration. A kubelet renews it
// four times in that time. If it was not renewed between two checks, or not checked in time, the window starts again.
func (k *kubelets) recordLease(node string, uid types.UID, lease string, duration time.Duration, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaseChecks == nil {
		k.leaseChecks = map[string]leaseCheck{}
	}
	l := k.leaseChecks[node]
	interval := (max(duration, attachment.SyncWindow)/3 + time.Second).Truncate(time.Second)
	next, inTime := now.Add(interval), now.Before(l.next.Add(interval/2))
	switch {
	case l.uid == uid && (l.synced || now.Before(l.next)):
	case l.uid == uid && inTime && l.lease != "" && lease != "" && lease != l.lease:
		l.lease, l.next, l.synced = lease, next, now.Sub(l.began) >= attachment.SyncWindow
		k.leaseChecks[node] = l
	default:
		k.leaseChecks[node] = leaseCheck{uid: uid, began: now, next: next, lease: lease}
	}
}

// checkKubelet reads the lease of the kubelet.
func (w *work) checkKubelet(ctx context.Context, s attachment.CheckKubelet) (again bool, err error) {
	lease := &coordinationv1.Lease{}
	name := client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: string(s.Node)}
	if err := w.live.Get(ctx, name, lease); err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read the lease of node %s: %w", s.Node, err)
	}
	var duration time.Duration
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
		duration = time.Duration(*seconds) * time.Second
	}
	w.state.kubelets.recordLease(string(s.Node), types.UID(s.NodeUID), lease.ResourceVersion, duration, w.clock.Now())
	return true, nil
}
