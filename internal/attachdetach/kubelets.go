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
	"belay.dev/belay/internal/kube"
)

// kubelets tracks, for Nodes that were recreated while volumes were attached to their machines, how long the kubelet has been alive
// without listing a volume that waits for it (attachment.SyncWindow). Its lease shows that the process runs, the condition Ready that
// its status reaches the API server.
type kubelets struct {
	mu          sync.Mutex
	leaseChecks map[string]leaseCheck // by node
}

// leaseCheck is the state of one kubelet.
type leaseCheck struct {
	uid   types.UID // of the Node
	lease string    // resource version of the lease at the last check, or empty
	last  time.Time // the last check
	next  time.Time // when it must have been renewed again
	// alive is the check before the last one, if the lease was renewed in between: the kubelet may have ended right after that.
	alive time.Time
	// quiet is since when each volume that waits was not listed, by unique name. The kubelet was alive from then on until alive.
	quiet map[string]time.Time
}

// describe returns the Node with the state of its kubelet with regard to a volume.
func (k *kubelets) describe(name, unique string, n attachment.Node) attachment.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	n.QuietSince, n.QuietUntil, n.NextKubeletCheck = time.Time{}, time.Time{}, time.Time{}
	l := k.leaseChecks[name]
	if since, ok := l.quiet[unique]; ok && string(l.uid) == n.Machine.NodeUID {
		n.QuietSince, n.QuietUntil, n.NextKubeletCheck = since, l.alive, l.next
	}
	return n
}

// forget drops a Node that was deleted, or is no longer Ready.
func (k *kubelets) forget(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.leaseChecks, node)
}

// listed records that the node has listed the volume just now, or until now. It may have been an orphan's until then.
func (k *kubelets) listed(node, unique string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	quiet := k.leaseChecks[node].quiet
	if len(quiet) == 0 {
		return
	}
	delete(quiet, unique)
	if driver, handle, ok := kube.ParseUniqueVolumeName(unique); ok {
		delete(quiet, orphanUnique(kube.AttachmentName(handle, driver, node)))
	}
}

// joins adds a volume that the Node does not list, and reports false if it is time to read the lease.
func (k *kubelets) joins(node string, uid types.UID, unique string, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.leaseChecks[node]
	if l.uid != uid || !now.Before(l.next) {
		return false
	}
	if _, ok := l.quiet[unique]; !ok {
		l.quiet[unique] = now
	}
	return true
}

// recordLease records the resource version of the lease, empty if there is none, and its duration. A kubelet renews it
// four times in that time. If it was not renewed between two checks, or not checked in time, all windows start again.
func (k *kubelets) recordLease(node string, uid types.UID, lease string, duration time.Duration, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaseChecks == nil {
		k.leaseChecks = map[string]leaseCheck{}
	}
	l := k.leaseChecks[node]
	interval := (max(duration, attachment.SyncWindow)/3 + time.Second).Truncate(time.Second)
	inTime := now.Before(l.next.Add(interval / 2))
	switch {
	case l.uid == uid && now.Before(l.next):
		return
	case l.uid != uid || !inTime || l.lease == "" || lease == "" || lease == l.lease:
		quiet := map[string]time.Time{}
		for unique := range l.quiet {
			if l.uid == uid {
				quiet[unique] = now
			}
		}
		l.quiet, l.last = quiet, time.Time{}
	}
	l.uid, l.lease, l.alive, l.last, l.next = uid, lease, l.last, now, now.Add(interval)
	k.leaseChecks[node] = l
}

// checkKubelet reads the lease of the kubelet if it is time to.
func (w *work) checkKubelet(ctx context.Context, s attachment.CheckKubelet) (again bool, err error) {
	k, node, uid := &w.state.kubelets, string(s.Node), types.UID(s.NodeUID)
	if k.joins(node, uid, w.unique(), w.clock.Now()) {
		return true, nil
	}
	lease := &coordinationv1.Lease{}
	name := client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node}
	if err := w.live.Get(ctx, name, lease); err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read the lease of node %s: %w", s.Node, err)
	}
	var duration time.Duration
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
		duration = time.Duration(*seconds) * time.Second
	}
	k.recordLease(node, uid, lease.ResourceVersion, duration, w.clock.Now())
	k.joins(node, uid, w.unique(), w.clock.Now())
	return true, nil
}
