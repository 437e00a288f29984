package attachdetach

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
)

// snapshot is the cached state of one volume.
type snapshot struct {
	want attachment.Desired
	seen attachment.Observed
	// wants holds the elements of want.Wants by node.
	wants map[attachment.NodeName]attachment.Want
	// pods holds the pods that need the volume by node, oldest first.
	pods map[attachment.NodeName][]*corev1.Pod
	// inline holds the inline volumes of those pods by node.
	inline map[attachment.NodeName]kube.InlineVolume
	// refused is that of demand.
	refused []*corev1.Pod
	// volumeName is the name of the volume in events: its PersistentVolume, or its handle.
	volumeName string
	// migrated reports whether the volume is an in-tree volume that was migrated to CSI.
	migrated bool
	// driverAgain is when to ask again whether the driver requires attach; zero for never.
	driverAgain time.Time
}

// volumeNameAt is the name of the volume in events for pods of a node: several PersistentVolumes may share a handle,
// and a pod knows its own.
func (s snapshot) volumeNameAt(node attachment.NodeName) string {
	if inline, ok := s.inline[node]; ok {
		return inline.Name
	}
	return cmp.Or(s.wants[node].PersistentVolume, s.volumeName)
}

// nodeReads are the responses of the API server about nodes during one Reconcile. Steps for several nodes run
// concurrently.
type nodeReads struct {
	mu sync.Mutex
	// answered holds the nodes whose state the API server returned after a withdrawal.
	answered map[attachment.NodeName]bool
	// missing holds the nodes that do not exist.
	missing map[attachment.NodeName]bool
}

// record stores a response about the node.
func (r *nodeReads) record(node attachment.NodeName, out outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered == nil { // most decisions need none
		r.answered, r.missing = map[attachment.NodeName]bool{}, map[attachment.NodeName]bool{}
	}
	r.answered[node], r.missing[node] = out.answered, out.missing
}

// get returns the stored response.
func (r *nodeReads) get(node attachment.NodeName) (answered, missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered[node], r.missing[node]
}

// writeTracker reports which writes without a response may still be carried out.
type writeTracker interface {
	deleteMayBeUnderway(va *storagev1.VolumeAttachment) bool
	writeMayBeUnderway(node *corev1.Node) bool
	// pending returns the creates without a response.
	pending(k key) []attachment.Pending
	// attachmentDeleted records the deletion of an attachment of the volumes.
	attachmentDeleted(keys []key, va *storagev1.VolumeAttachment)
}

// observe returns the snapshot of a volume that is being processed.
func (w *clusterState) observe(key attachment.VolumeKey, reads *nodeReads, d writeTracker) snapshot {
	w.unidentified.identify(key)
	return w.snapshotOf(key, reads, d)
}

// snapshotOf returns the snapshot of a volume without changing any state.
func (w *clusterState) snapshotOf(key attachment.VolumeKey, reads *nodeReads, d writeTracker) snapshot {
	if key.Driver == orphanDriver {
		return w.observeOrphan(key, reads, d)
	}
	demand := w.demandFor(key)
	s := snapshot{volumeName: demand.name(key), wants: demand.wants, pods: demand.pods, inline: demand.inline, refused: demand.refused}
	_, s.driverAgain = w.attachAnswer(key.Driver)
	s.seen.Volume, s.seen.Newest = key, w.newest()
	s.migrated = slices.ContainsFunc(demand.volumes, kube.Migrated) || len(demand.inline) > 0 && !kube.NoAttacher(key.Driver)
	s.want.Wants = slices.AppendSeq(make([]attachment.Want, 0, len(demand.wants)), maps.Values(demand.wants))
	unique := kube.UniqueVolumeName(key.Driver, key.Handle)
	listed := w.nodes.ByIndex(byVolume, unique)
	names := slices.AppendSeq(make([]string, 0, 2*len(listed)), maps.Keys(listed))
	for node := range s.pods {
		if _, ok := listed[string(node)]; !ok {
			names = append(names, string(node))
		}
	}
	attachments := w.attachmentsOf(key, demand.volumes, names)
	s.seen.Attachments = make([]attachment.Attachment, 0, len(attachments))
	for _, va := range attachments {
		names = append(names, va.Spec.NodeName)
		s.seen.Attachments = append(s.seen.Attachments, w.attachment(key, va, d.deleteMayBeUnderway(va)))
	}
	s.want.Shared, s.want.SharedAttached = demand.sharing(attachments, s.seen.Attachments)
	s.seen.Pending = d.pending(key)
	w.recordMissing(key, listed, attachments)
	implied := w.impliedAttachments(key, s.seen.Attachments)
	for _, a := range implied {
		names = append(names, string(a.Node))
	}
	s.seen.Nodes = make(map[attachment.NodeName]attachment.Node, len(listed))
	for _, name := range names {
		if _, ok := s.seen.Nodes[attachment.NodeName(name)]; !ok {
			s.seen.Nodes[attachment.NodeName(name)] = w.node(name, unique, reads, d)
		}
	}
	s.addImplied(implied)
	w.addMachines(&s, key.Driver)
	return s
}

// addMachines adds the CSI node IDs of the nodes with an attachment. It looks for other Nodes with the identities of a machine where a decision
// may rest on them: at a Node object other than the one that was recorded.
func (w *clusterState) addMachines(s *snapshot, driver string) {
	for i := range s.seen.Attachments {
		a := &s.seen.Attachments[i]
		n := s.seen.Nodes[a.Node]
		n.NodeID = w.nodeID(string(a.Node), driver)
		s.seen.Nodes[a.Node] = n
		if n.Machine.NodeUID == a.Machine.NodeUID {
			continue
		}
		node, ok := w.nodes.Get(string(a.Node))
		if !ok {
			node, ok = w.lastSeen(string(a.Node))
		}
		if !ok {
			continue
		}
		n.Shared = w.shared(node)
		s.seen.Nodes[a.Node] = n
	}
}

// shared says which identities of the machine of a Node another Node carries too.
func (w *clusterState) shared(node *corev1.Node) attachment.Shared {
	others := kube.SharedWith(w.nodes, node)
	return kube.Shared(node, func(i kube.Identity) bool { return len(others[i]) > 0 })
}

// newest returns the time for new requests, or zero for the time of the decision.
func (w *clusterState) newest() time.Time {
	if clock, ok := w.clock.(serverClock); ok {
		return clock.Newest()
	}
	return time.Time{}
}

// addImplied adds attachments without an object. Their detach request is stored on the Node.
func (s *snapshot) addImplied(implied []attachment.Attachment) {
	for _, a := range implied {
		a.DetachRequested = s.seen.Nodes[a.Node].DetachRequested
		s.seen.Attachments = append(s.seen.Attachments, a)
	}
}

func (w *clusterState) attachment(key attachment.VolumeKey, va *storagev1.VolumeAttachment, doubtful bool) attachment.Attachment {
	a := kube.AttachmentFacts(va, key)
	a.DeleteMayBeUnderway = doubtful
	a.Recreated = a.Confirmed != attachment.Yes && a.Computed && w.ledger.has(kube.UniqueVolumeName(key.Driver, key.Handle), va.Spec.NodeName)
	if a.PersistentVolume != "" {
		_, exists := get[*corev1.PersistentVolume](w.volumes, a.PersistentVolume)
		a.VolumeGone = !exists
	}
	a.AttachError, a.DetachError = explain.DriverError(a.AttachError), explain.DriverError(a.DetachError)
	return a
}

// writeTime keeps fractions of a second, so that no timeout ends early.
func writeTime(t time.Time) string { return t.Add(-planted.Clock).UTC().Format(time.RFC3339Nano) }

// node returns the state of a node with regard to a volume.
func (w *clusterState) node(name, unique string, reads *nodeReads, d writeTracker) attachment.Node {
	node, ok := w.nodes.Get(name)
	answered, missing := reads.get(attachment.NodeName(name))
	if !ok || missing {
		n := w.departedNode(name, node, unique)
		n.Checked, n.Proofs, n.Lives = answered, w.proofs.Of(name), w.lives(name, n)
		return n
	}
	n := kube.NodeFacts(node, w.largeNodes.of(node, unique))
	n.Checked, n.Proofs, n.Lives = answered, w.proofs.Of(name), w.lives(name, n)
	n.WriteMayBeUnderway = d.writeMayBeUnderway(node)
	return w.kubelets.describe(name, unique, n)
}

// departedNode returns the state of a node that does not exist. If the cache still has it, its last version is unknown,
// and so is whether it uses the volume.
func (w *clusterState) departedNode(name string, cached *corev1.Node, unique string) attachment.Node {
	n := attachment.Node{Exists: attachment.No, Healthy: attachment.No}
	last, ok := cached, cached != nil
	if !ok {
		last, ok = w.lastSeen(name)
	}
	if !ok {
		return n
	}
	n.Machine, n.Created = kube.MachineOf(last), last.CreationTimestamp.Time
	if cached == nil {
		n.InUse = decision.Known(w.largeNodes.of(last, unique).InUse)
	}
	return n
}
