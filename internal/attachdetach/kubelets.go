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
	lease  string // version of the lease then, empty if there was none
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
		n.SyncDue = l.began.Add(attachment.SyncWindow)
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

// saw takes the version of the lease, empty if there is none.
func (k *kubelets) saw(node string, uid types.UID, lease string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.looks == nil {
		k.looks = map[string]look{}
	}
	l := k.looks[node]
	switch {
	case l.uid == uid && l.synced:
	case l.uid == uid && now.Sub(l.began) < attachment.SyncWindow:
	case l.uid == uid && l.lease != "" && lease != "" && lease != l.lease:
		k.looks[node] = look{uid: uid, synced: true}
	default:
		k.looks[node] = look{uid: uid, began: now, lease: lease}
	}
}

// checkKubelet reads the lease of the node's kubelet.
func (w *work) checkKubelet(ctx context.Context, s attachment.CheckKubelet) (again bool, err error) {
	lease := &coordinationv1.Lease{}
	name := client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: string(s.Node)}
	if err := w.live.Get(ctx, name, lease); err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read the lease of node %s: %w", s.Node, err)
	}
	w.world.kubelets.saw(string(s.Node), uidOf(s.NodeUID), lease.ResourceVersion, w.clock.Now())
	return true, nil
}
