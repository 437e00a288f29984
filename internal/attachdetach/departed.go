package attachdetach

import corev1 "k8s.io/api/core/v1"

// nodeDeleted keeps the last version of a deleted Node: its in-use list is the only evidence of use.
func (w *clusterState) nodeDeleted(node *corev1.Node) {
	w.ledger.nodeDeleted(node)
	w.mu.Lock()
	defer w.mu.Unlock()
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
