package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// lettings are volumes that one Node object listed in use and then no longer. It is
// noted at each event: a decision may see only the last of several.
type lettings struct {
	uid     types.UID
	volumes map[string]bool
}

// heedLettingGo remembers what a Node let go that was attached before this Node object
// was created: of everything else its list alone is believed. It must have been reported
// at the time: what is not, a kubelet that restarts leaves off its list while it is mounted.
func (w *clusterState) heedLettingGo(after *corev1.Node, was, is map[string]standing) {
	for unique, before := range was {
		if !before.inUse || !before.reported || is[unique].inUse {
			continue
		}
		if key, ok := keyOfName(unique); !ok || !w.givenBefore(key, unique, after) {
			continue
		}
		w.mu.Lock()
		if w.letGo[after.Name].uid != after.UID {
			w.letGo[after.Name] = lettings{uid: after.UID, volumes: map[string]bool{}}
		}
		w.letGo[after.Name].volumes[unique] = true
		w.mu.Unlock()
	}
}

// givenBefore reports whether the volume was given to the node before this Node object
// was created.
func (w *clusterState) givenBefore(k key, unique string, node *corev1.Node) bool {
	if va, ok := w.attachments.Get(kube.AttachmentName(k.Handle, k.Driver, node.Name)); ok {
		return recordedMachine(va).NodeUID != string(node.UID)
	}
	h, ok := w.ledger.of(unique)[node.Name]
	return ok && h.machine.NodeUID != string(node.UID)
}

// hasLetGo reports whether this Node object was seen to let the volume go.
func (w *clusterState) hasLetGo(node *corev1.Node, unique string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.letGo[node.Name]
	return l.uid == node.UID && l.volumes[unique]
}

// depart remembers a Node that was deleted: its in-use list is all that shows whether a
// volume was in use.
func (w *clusterState) depart(node *corev1.Node) {
	w.ledger.depart(node)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.letGo, node.Name)
	w.departed[node.Name] = node
}

// arrive drops what was remembered of a Node that is back.
func (w *clusterState) arrive(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.departed, name)
}

// forget drops a Node that was deleted once nothing is attached to it any more.
func (w *clusterState) forget(name string) {
	if len(w.attachments.ByIndex(byNode, name)) > 0 || len(w.ledger.on(name)) > 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.letGo, name)
	delete(w.departed, name)
	w.long.forget(name)
}

// lastSeen returns the last version of a Node that was deleted.
func (w *clusterState) lastSeen(name string) (*corev1.Node, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.departed[name]
	return d, ok
}
