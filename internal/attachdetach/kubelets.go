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

// kubelets follows the kubelets of Nodes that were recreated while volumes were attached
// to their machines: whether each is alive long enough to have sent a complete list of
// what it uses (attachment.SyncWindow). The lease shows that the process lives, the
// condition Ready that its status reaches the API server.
type kubelets struct {
	mu    sync.Mutex
	looks map[string]look // by node
}

// look is what was seen of one kubelet.
type look struct {
	uid    types.UID // of the Node
	began  time.Time
	next   time.Time // when it must have renewed its lease again
	lease  string    // version of the lease at the last look, empty if there was none
	synced bool
}

// describe fills in what is known of the kubelet behind the Node.
func (k *kubelets) describe(node *corev1.Node, n *attachment.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.looks[node.Name]
	if !ok || l.uid != node.UID {
		return
	}
	if n.ListSynced = l.synced; !l.synced {
		n.ListSyncDue, n.NextKubeletCheck = l.began.Add(attachment.SyncWindow), l.next
	}
}

// forget is called when the Node is gone.
func (k *kubelets) forget(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.looks, node)
}

// interrupt begins again where the Node is no longer Ready.
func (k *kubelets) interrupt(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.looks[node].synced {
		delete(k.looks, node)
	}
}

// saw takes the version of the lease, empty if there is none, and how long it is good for. A
// kubelet renews it four times in that time: one that has not done so between two looks, or
// that nobody looked at in time, is looked at from the beginning.
func (k *kubelets) saw(node string, uid types.UID, lease string, duration time.Duration, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.looks == nil {
		k.looks = map[string]look{}
	}
	l := k.looks[node]
	interval := (max(duration, attachment.SyncWindow)/3 + time.Second).Truncate(time.Second)
	next, inTime := now.Add(interval), now.Before(l.next.Add(interval/2))
	switch {
	case l.uid == uid && (l.synced || now.Before(l.next)):
	case l.uid == uid && inTime && l.lease != "" && lease != "" && lease != l.lease:
		l.lease, l.next, l.synced = lease, next, now.Sub(l.began) >= attachment.SyncWindow
		k.looks[node] = l
	default:
		k.looks[node] = look{uid: uid, began: now, next: next, lease: lease}
	}
}

// checkKubelet reads the lease of the node's kubelet.
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
	w.state.kubelets.saw(string(s.Node), uidOf(s.NodeUID), lease.ResourceVersion, duration, w.clock.Now())
	return true, nil
}
