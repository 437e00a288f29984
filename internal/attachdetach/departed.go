package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// releasedVolumes are the volumes that a Node object listed in use and then no longer. They are recorded at each event,
// because a decision may miss intermediate versions.
type releasedVolumes struct {
	uid     types.UID
	volumes map[string]bool
}

// recordReleased records which volumes a Node released that were attached before this Node object was created; for all
// others its current list suffices. A volume must have been reported at the time: a restarted kubelet leaves unreported
// volumes off its list while they are mounted.
func (w *clusterState) recordReleased(after *corev1.Node, was, is map[string]volumeStatus) {
	for unique, before := range was {
		if !before.inUse || !before.reported || is[unique].inUse {
			continue
		}
		if key, ok := keyOfName(unique); !ok || !w.attachedBefore(key, unique, after) {
			continue
		}
		w.mu.Lock()
		if w.releasedBy[after.Name].uid != after.UID {
			w.releasedBy[after.Name] = releasedVolumes{uid: after.UID, volumes: map[string]bool{}}
		}
		w.releasedBy[after.Name].volumes[unique] = true
		w.mu.Unlock()
	}
}

// attachedBefore reports whether the volume was attached before this Node object was created.
func (w *clusterState) attachedBefore(k key, unique string, node *corev1.Node) bool {
	if va, ok := w.attachments.Get(kube.AttachmentName(k.Handle, k.Driver, node.Name)); ok {
		return kube.RecordedMachine(va).NodeUID != string(node.UID)
	}
	h, ok := w.ledger.of(unique)[node.Name]
	return ok && h.machine.NodeUID != string(node.UID)
}

// hasReleased reports whether this Node object released the volume.
func (w *clusterState) hasReleased(node *corev1.Node, unique string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.releasedBy[node.Name]
	return l.uid == node.UID && l.volumes[unique]
}

// nodeDeleted keeps the last version of a deleted Node: its in-use list is the only evidence of use.
func (w *clusterState) nodeDeleted(node *corev1.Node) {
	w.ledger.nodeDeleted(node)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.releasedBy, node.Name)
	w.departed[node.Name] = node
}

// nodeCreated drops the last version of a Node that was deleted before.
func (w *clusterState) nodeCreated(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.departed, name)
}

// forget drops a deleted Node when no volume is attached to it.
func (w *clusterState) forget(name string) {
	if len(w.attachments.ByIndex(byNode, name)) > 0 || len(w.ledger.on(name)) > 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.releasedBy, name)
	delete(w.departed, name)
	w.largeNodes.forget(name)
}

// lastSeen returns the last version of a Node that was deleted.
func (w *clusterState) lastSeen(name string) (*corev1.Node, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.departed[name]
	return d, ok
}
