package attachdetach

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// ledger remembers which volumes the nodes were given where no VolumeAttachment says so:
// those that have none (Fibre Channel, iSCSI), and those whose VolumeAttachment was
// removed while the node's report still listed the volume. Of a CSI volume the report
// alone is no proof, because a node may write its own: an entry is made only where this
// process saw the VolumeAttachment, or found the report when it began to lead. Of a volume
// without a VolumeAttachment there is nothing but the report, which may also be the late
// write of an earlier leader, so it is believed.
type ledger struct {
	mu sync.Mutex
	// entries are by unique volume name and node.
	entries map[string]map[string]holding
	// volumes are the unique names, by node.
	volumes map[string]map[string]bool
}

// holding is one volume that one node was given.
type holding struct {
	machine attachment.Machine
	created time.Time // of the Node object
	// requested is since when a detach waits, where no Node is left to store it on.
	requested time.Time
}

// add notes that the node is about to be given the volume, or was. What is known of an
// earlier run of the same machine stays until the Node lists the volume: only then does
// it know what it says (see attachment's rules for a Node that was recreated).
func (l *ledger) add(unique, node string, h holding, listed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.entries[unique][node]; ok && !listed {
		return
	}
	if l.entries == nil {
		l.entries, l.volumes = map[string]map[string]holding{}, map[string]map[string]bool{}
	}
	if l.entries[unique] == nil {
		l.entries[unique] = map[string]holding{}
	}
	if l.volumes[node] == nil {
		l.volumes[node] = map[string]bool{}
	}
	l.entries[unique][node] = h
	l.volumes[node][unique] = true
}

// request notes since when a detach waits; zero for no longer.
func (l *ledger) request(unique, node string, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.entries[unique][node]; ok {
		h.requested = since
		l.entries[unique][node] = h
	}
}

// remove forgets what the node was given.
func (l *ledger) remove(unique, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.entries[unique], node); len(l.entries[unique]) == 0 {
		delete(l.entries, unique)
	}
	if delete(l.volumes[node], unique); len(l.volumes[node]) == 0 {
		delete(l.volumes, node)
	}
}

// depart takes over what only the Node stored, and forgets what its VolumeAttachment was
// removed of: with both gone there is nothing that a person could delete to end the wait.
func (l *ledger) depart(node *corev1.Node) {
	requests := requestsOn(node)
	for _, k := range l.on(node.Name) {
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		if kube.NoVolumeAttachment(k.Driver) {
			l.request(unique, node.Name, readTime(requests[unique]))
		} else {
			l.remove(unique, node.Name)
		}
	}
}

// of gives the nodes that were given the volume.
func (l *ledger) of(unique string) map[string]holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.entries[unique])
}

func (l *ledger) has(unique, node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.entries[unique][node]
	return ok
}

// on gives the keys of the volumes that the node was given.
func (l *ledger) on(node string) []key {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []key
	for _, unique := range slices.Sorted(maps.Keys(l.volumes[node])) {
		if k, ok := keyOfName(unique); ok {
			keys = append(keys, k)
		}
	}
	return keys
}

func holdingOf(node *corev1.Node) holding {
	return holding{machine: machineOf(node), created: node.CreationTimestamp.Time}
}

// adopt takes what the Nodes report when this process begins to lead for what they were
// given: nothing else is left of what an earlier leader knew.
func (w *clusterState) adopt() {
	defer w.leads.Store(true)
	for _, node := range w.nodes.Cached() {
		w.dropWithdrawn(node)
		for _, v := range node.Status.VolumesAttached {
			unique := string(v.Name)
			k, ok := keyOfName(unique)
			if !ok || kube.NoVolumeAttachment(k.Driver) {
				continue // of these every report is believed, at any time
			}
			_, attached := w.attachments.Get(kube.AttachmentName(k.Handle, k.Driver, node.Name))
			if s := w.long.of(node, unique); !attached && s.inUse {
				w.ledger.believe(unique, node, s)
			}
		}
	}
}

// dropWithdrawn forgets what the leader before took from the node: a standby's watch of Nodes
// may have been behind when the VolumeAttachment went. It also took what a dead node uses.
func (w *clusterState) dropWithdrawn(node *corev1.Node) {
	for _, k := range w.ledger.on(node.Name) {
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		if !kube.NoVolumeAttachment(k.Driver) && !w.long.of(node, unique).reported {
			w.ledger.remove(unique, node.Name)
		}
	}
}

// believe takes the node's report for what it was given. Where a detach waits although the
// Node does not list the volume, an earlier Node object was given it: then nothing is
// known of the machine's run.
func (l *ledger) believe(unique string, node *corev1.Node, s standing) {
	h := holdingOf(node)
	if s.requested != "" && !s.inUse {
		h = holding{}
	}
	l.add(unique, node.Name, h, true)
}

// heedWithdrawals forgets, as a standby, what the leader has taken from the node: of a volume
// that is off the report and not in use. What a leader finds wiped it puts back.
func (w *clusterState) heedWithdrawals(node string, was, is map[string]standing) {
	if w.leads.Load() {
		return
	}
	for unique, before := range was {
		if before.reported && !is[unique].reported && !is[unique].inUse {
			w.ledger.remove(unique, node)
		}
	}
}

// heedReports takes what the newest version of a Node reports of volumes without a
// VolumeAttachment. An event may carry an older one, with what was withdrawn since.
func (w *clusterState) heedReports(name string) {
	node, ok := w.nodes.Get(name)
	if !ok {
		return
	}
	for _, v := range node.Status.VolumesAttached {
		if _, ok := unattached(string(v.Name)); ok {
			w.heedReport(name, string(v.Name))
		}
	}
}

// heedReport does so of one such volume.
func (w *clusterState) heedReport(name, unique string) {
	node, ok := w.nodes.Get(name)
	if !ok || w.ledger.has(unique, name) {
		return
	}
	if s := w.long.of(node, unique); s.reported {
		w.ledger.believe(unique, node, s)
	}
}

// lost notes that an attachment is gone while its node still reports the volume. The
// controller withdraws the report first, so another writer removed it.
func (w *clusterState) lost(va *storagev1.VolumeAttachment) {
	node, ok := w.nodes.Get(va.Spec.NodeName)
	if !ok {
		return
	}
	for _, k := range w.keysOfAttachment(va) {
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		if computed(va, k) && w.long.of(node, unique).reported {
			h := holding{machine: recordedMachine(va), created: va.CreationTimestamp.Time}
			if machineOf(node).Replaces(h.machine) {
				h = holdingOf(node) // with Node and attachment gone, nothing is left of the machine before
			}
			w.ledger.add(unique, node.Name, h, true)
		}
	}
}

// impliedAt gives the attachments of the volume that no object stands for.
func (w *clusterState) impliedAt(k key, objects []attachment.Attachment) []attachment.Attachment {
	var found []attachment.Attachment
	for node, h := range w.ledger.of(kube.UniqueVolumeName(k.Driver, k.Handle)) {
		at := attachment.NodeName(node)
		if slices.ContainsFunc(objects, func(a attachment.Attachment) bool { return a.Computed && a.Node == at }) {
			continue
		}
		found = append(found, attachment.Attachment{
			Node: at, Implied: true, Computed: true, Confirmed: attachment.Yes, Machine: h.machine, Created: h.created,
			DetachRequested: h.requested,
		})
	}
	return found
}
