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

// ledger records which volumes are attached to nodes without a VolumeAttachment: those whose VolumeAttachment was removed while the Node
// still reported the volume. The report alone is no proof, because a node may write its own: an entry requires that this process saw the
// VolumeAttachment, or found the report when it started to lead, with a pod that uses the volume.
type ledger struct {
	mu sync.Mutex
	// entries are keyed by unique volume name and node.
	entries map[string]map[string]ledgerEntry
	// volumes holds the unique names by node.
	volumes map[string]map[string]bool
}

// ledgerEntry is one volume that is attached to one node.
type ledgerEntry struct {
	machine attachment.Machine
	created time.Time // of the Node object
	// inDoubt: the volume may have been attached under an earlier Node object.
	inDoubt bool
}

// add records that the volume is, or is about to be, attached to the node.
func (l *ledger) add(unique, node string, h ledgerEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries == nil {
		l.entries, l.volumes = map[string]map[string]ledgerEntry{}, map[string]map[string]bool{}
	}
	if l.entries[unique] == nil {
		l.entries[unique] = map[string]ledgerEntry{}
	}
	if l.volumes[node] == nil {
		l.volumes[node] = map[string]bool{}
	}
	l.entries[unique][node] = h
	l.volumes[node][unique] = true
}

// remove removes an entry.
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

// nodeDeleted removes the entries of a Node: without Node and VolumeAttachment, there is no object that a person could delete to end
// the wait.
func (l *ledger) nodeDeleted(node *corev1.Node) {
	for _, k := range l.on(node.Name) {
		l.remove(kube.UniqueVolumeName(k.Driver, k.Handle), node.Name)
	}
}

// of returns the entries of a volume by node.
func (l *ledger) of(unique string) map[string]ledgerEntry {
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

// on returns the keys of the volumes on a node.
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

func entryFor(node *corev1.Node) ledgerEntry {
	return ledgerEntry{machine: kube.MachineOf(node), created: node.CreationTimestamp.Time}
}

// adopt adds the volumes that Nodes report and use without a VolumeAttachment when this process starts to lead, because the previous leader's
// ledger is lost. A node writes its own status, so that counts only for a volume that a pod there uses. Before there were records, it is
// all that there is.
func (w *clusterState) adopt(recorded bool) {
	defer w.leads.Store(true)
	for _, node := range w.nodes.Cached() {
		w.dropWithdrawn(node)
		for _, v := range node.Status.VolumesAttached {
			unique := string(v.Name)
			k, ok := keyOfName(unique)
			if !ok {
				continue
			}
			_, attached := w.attachments.Get(kube.AttachmentName(k.Handle, k.Driver, node.Name))
			if s := w.largeNodes.of(node, unique); !attached && s.InUse && (!recorded || w.usedByPod(k, node.Name)) {
				w.ledger.addReported(unique, node, s)
			}
		}
	}
}

// dropWithdrawn removes entries that the previous leader withdrew from the node, also those of a dead node that uses
// the volume: a standby's cache of Nodes may have been behind when the VolumeAttachment was deleted.
func (w *clusterState) dropWithdrawn(node *corev1.Node) {
	for _, k := range w.ledger.on(node.Name) {
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		if !w.largeNodes.of(node, unique).Reported {
			w.ledger.remove(unique, node.Name)
		}
	}
}

// addReported adds a volume that a Node reports, and nothing says under which Node object it was attached. If a detach is requested and
// the Node does not list the volume in use, that was an earlier one, and the machine is unknown.
func (l *ledger) addReported(unique string, node *corev1.Node, s kube.Listing) {
	h := entryFor(node)
	h.inDoubt = true
	if s.DetachRequested != "" && !s.InUse {
		h = ledgerEntry{}
	}
	l.add(unique, node.Name, h)
}

// forgetWithdrawn removes, on a standby, the entries of volumes that the leader withdrew: no longer reported and not in
// use. A leader restores a report that was removed by another client.
func (w *clusterState) forgetWithdrawn(node string, was, is map[string]kube.Listing) {
	if w.leads.Load() {
		return
	}
	for unique, before := range was {
		if before.Reported && !is[unique].Reported && !is[unique].InUse {
			w.ledger.remove(unique, node)
		}
	}
}

// recordLost adds a volume whose VolumeAttachment was removed while its Node still reports it. The controller withdraws
// the report first, so another client removed the VolumeAttachment.
func (w *clusterState) recordLost(va *storagev1.VolumeAttachment) {
	node, ok := w.nodes.Get(va.Spec.NodeName)
	if !ok {
		return
	}
	for _, k := range w.keysOfAttachment(va) {
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		if s := w.largeNodes.of(node, unique); kube.IsAttachmentOf(va, k) && s.Reported {
			h := ledgerEntry{machine: kube.RecordedMachine(va), created: va.CreationTimestamp.Time}
			n, a := kube.NodeFacts(node, s), attachment.Attachment{Node: attachment.NodeName(node.Name), Machine: h.machine, Created: h.created}
			if n.Shared = w.shared(node); n.Another(&a) {
				h = entryFor(node) // without Node and VolumeAttachment, the earlier machine is unknown
			}
			w.ledger.add(unique, node.Name, h)
		}
	}
}

// recordMissing does so for attachments of the volume that are gone from the cache, but whose delete event was not
// handled yet: in between, neither the cache nor the ledger shows that the volume is attached.
func (w *clusterState) recordMissing(k key, listed map[string]*corev1.Node, found []*storagev1.VolumeAttachment) {
	attached := make(map[string]bool, len(found))
	for _, va := range found {
		attached[va.Spec.NodeName] = true
	}
	for node := range listed {
		if attached[node] {
			continue
		}
		if va := w.handled.of(kube.AttachmentName(k.Handle, k.Driver, node)); va != nil {
			w.recordLost(va)
		}
	}
}

// impliedAttachments returns the attachments of the volume that have no object.
func (w *clusterState) impliedAttachments(k key, objects []attachment.Attachment) []attachment.Attachment {
	var found []attachment.Attachment
	for node, h := range w.ledger.of(kube.UniqueVolumeName(k.Driver, k.Handle)) {
		at := attachment.NodeName(node)
		if slices.ContainsFunc(objects, func(a attachment.Attachment) bool { return a.Computed && a.Node == at }) {
			continue
		}
		found = append(found, attachment.Attachment{
			Node: at, Implied: true, Computed: true, Confirmed: attachment.Yes, Machine: h.machine, Created: h.created, InDoubt: h.inDoubt,
		})
	}
	return found
}
