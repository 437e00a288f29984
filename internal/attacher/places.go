package attacher

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// A shared volume is decided per place, which is a CSI node ID: a decision looks at the attachments of its place alone, whatever number of nodes
// has the volume.

// keyOf returns the queue key of an attachment.
func (o *objects) keyOf(va *storagev1.VolumeAttachment) publication.Key {
	from, err := o.sourceOf(va)
	if err != nil {
		return publication.Key{Attachment: va.Name}
	}
	return o.keyAt(from.handle, va)
}

// keyAt returns the queue key of an attachment of a known volume.
func (o *objects) keyAt(handle string, va *storagev1.VolumeAttachment) publication.Key {
	if o.exclusive(handle) {
		return publication.Key{Volume: handle}
	}
	if id := cmp.Or(va.Annotations[kube.NodeIDAnnotation], o.nodeID(va.Spec.NodeName)); id != "" {
		return publication.Key{Volume: handle, NodeID: id}
	}
	return publication.Key{Volume: handle, Node: va.Spec.NodeName}
}

// keyOfRecord returns the key of the attachment of a record, also if that is gone.
func (o *objects) keyOfRecord(r record) publication.Key {
	if va, ok := o.attachments.Get(r.name); ok && va.UID == r.uid {
		return o.keyOf(va)
	}
	return r.keyIfGone(o.exclusive(r.handle))
}

func (r record) keyIfGone(exclusive bool) publication.Key {
	if exclusive {
		return publication.Key{Volume: r.handle}
	}
	if r.call.NodeID == "" {
		return publication.Key{Volume: r.handle, Node: r.node}
	}
	return publication.Key{Volume: r.handle, NodeID: r.call.NodeID}
}

// nodeID returns the present CSI node ID of a node; empty if there is none.
func (o *objects) nodeID(node string) string {
	if csiNode, ok := o.csiNodes.Get(node); ok {
		for _, driver := range csiNode.Spec.Drivers { // the cache keeps only ours
			return driver.NodeID
		}
	}
	return ""
}

// keysBeside are the keys of the attachments that may be at a place of one of a shared volume, by what is recorded on it, by its node, or by more node
// IDs: what needs the volume there, or is to unpublish it, depends on it.
func (a *Attacher) keysBeside(handle string, va *storagev1.VolumeAttachment, more ...string) (keys []publication.Key) {
	ids := append(append(recordedPlaces(va), a.objects.nodeID(va.Spec.NodeName)), more...)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		for _, other := range a.attachmentsAt(handle, id, va.Spec.NodeName) {
			keys = append(keys, a.objects.keyAt(handle, other))
		}
	}
	for _, r := range a.calls.ofKey(publication.Key{Volume: handle, Node: va.Spec.NodeName}) { // of attachments that are gone, too
		keys = append(keys, a.objects.keyOfRecord(r))
	}
	return keys
}

// recordedPlaces are the node IDs that are recorded on an attachment: the one that it was published to, and the one that was found to be of the same
// machine.
func recordedPlaces(va *storagev1.VolumeAttachment) (ids []string) {
	for _, id := range []string{va.Annotations[kube.NodeIDAnnotation], va.Annotations[kube.SameMachineAnnotation]} {
		if id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// attachmentsAt returns our attachments of a volume that may be at a place, sorted by name: by the node ID that is recorded on them, or by their node.
func (a *Attacher) attachmentsAt(handle, nodeID string, nodes ...string) []*storagev1.VolumeAttachment {
	o, found := a.objects, map[string]*storagev1.VolumeAttachment{}
	of := o.isOf(handle)
	if nodeID != "" {
		for _, node := range o.csiNodes.byIndex(indexNodeID, nodeID) {
			nodes = append(nodes, node.Name)
		}
		maps.Copy(found, o.attachments.ByIndexWhere(indexRecorded, nodeID, of))
	}
	for _, node := range nodes {
		maps.Copy(found, o.attachments.ByIndexWhere(indexNode, node, of))
	}
	o.matchOrphans(handle)
	for _, name := range o.orphans.of(handle) {
		va, ok := o.attachments.Get(name)
		if ok && (slices.Contains(nodes, va.Spec.NodeName) || nodeID != "" && slices.Contains(recordedPlaces(va), nodeID)) {
			found[name] = va
		}
	}
	return sorted(found)
}

// isOf returns which attachments are ones of a volume, but for those whose PersistentVolume is gone and whose handle is not recorded.
func (o *objects) isOf(handle string) func(va *storagev1.VolumeAttachment) bool {
	named := map[string]bool{}
	for _, pv := range o.volumes.byIndex(indexHandle, handle) {
		named[pv.Name] = true
	}
	return func(va *storagev1.VolumeAttachment) bool {
		known := cmp.Or(inlineHandle(va, o.driver), identified(va, o.driver))
		if known != nil {
			return *known == handle
		}
		name := va.Spec.Source.PersistentVolumeName
		return name != nil && va.Spec.Source.InlineVolumeSpec == nil && named[*name] && o.mayBelongTo(va, handle)
	}
}

// observeBeside adds the attachments of other keys that may be at a place of one of the snapshot's, or are for its node, by whatever ID.
func (a *Attacher) observeBeside(snap *snapshot) {
	seen := map[string]bool{snap.key.NodeID: true}
	for _, own := range slices.Clone(snap.seen.Attachments) {
		for _, id := range own.Places() {
			if !seen[id] && (id != "" || own.NodeID == "") {
				seen[id] = true
				a.observeAll(snap, a.attachmentsAt(snap.key.Volume, id, own.Node))
			}
		}
	}
}

func (a *Attacher) observeAll(snap *snapshot, all []*storagev1.VolumeAttachment) {
	for _, va := range all {
		a.observeOne(snap, va)
	}
}

// observeOne adds an attachment to a snapshot.
func (a *Attacher) observeOne(snap *snapshot, va *storagev1.VolumeAttachment) {
	if snap.subjects[string(va.UID)] != nil {
		return
	}
	subj := a.observeAttachment(va)
	subj.seen.Beside = snap.key.Shared() && a.objects.keyAt(snap.key.Volume, va) != snap.key
	snap.add(subj)
}

// sharedVolumes remembers which volumes were shared when the last event about them was handled: when that changes, the keys of all their attachments
// do.
type sharedVolumes struct {
	mu      sync.Mutex
	handles map[string]bool
}

// changed records whether a volume is exclusive, and reports whether that has changed.
func (s *sharedVolumes) changed(handle string, exclusive bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handles[handle] != exclusive {
		return false
	}
	if exclusive {
		delete(s.handles, handle)
		return true
	}
	if s.handles == nil {
		s.handles = map[string]bool{}
	}
	s.handles[handle] = true
	return true
}
