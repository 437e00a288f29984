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

// attachmentVolume indexes an attachment by the volume that the object itself identifies.
func attachmentVolume(obj any) ([]string, error) {
	if k, ok := kube.VolumeOfAttachment(obj.(*storagev1.VolumeAttachment)); ok {
		return []string{kube.UniqueVolumeName(k.Driver, k.Handle)}, nil
	}
	return nil, nil
}

// keysOfAttachment returns the volumes that the attachment may belong to: by its own data, by its PersistentVolume, and
// by its name among the volumes that its node lists. If these differ, for example after the PersistentVolume was
// recreated for another volume, it returns all of them. An attachment whose name matches no volume is an orphan.
func (w *clusterState) keysOfAttachment(va *storagev1.VolumeAttachment) []key {
	pv, _ := get[*corev1.PersistentVolume](w.volumes, kube.SourceName(va))
	keys := kube.VolumesOf(va, pv, func(yield func(key) bool) {
		if k, ok := w.unidentified.volume(va.Name); !ok || yield(k) {
			kube.Named(w.listedBy(va.Spec.NodeName))(yield)
		}
	})
	confirmed := func(k key) bool { return kube.IsAttachmentOf(va, k) }
	if isUnidentified(va) && !slices.ContainsFunc(keys, confirmed) {
		keys = append(keys, orphanKey(va))
	}
	return keys
}

// listedBy returns the names of the volumes that a Node lists or last listed.
func (w *clusterState) listedBy(name string) []string {
	node, ok := w.nodes.Get(name)
	if !ok {
		if node, ok = w.lastSeen(name); !ok {
			return nil
		}
	}
	names, _ := nodeVolumes(node)
	return names
}

func keyOfName(unique string) (key, bool) {
	driver, handle, ok := kube.ParseUniqueVolumeName(unique)
	return key{Driver: driver, Handle: handle}, ok
}

// attachmentsOf returns the attachments of the volume: by their own data, by its PersistentVolumes, and by name, on the
// given nodes and among the unidentified attachments.
func (w *clusterState) attachmentsOf(k key, volumes []*corev1.PersistentVolume, nodes []string) []*storagev1.VolumeAttachment {
	found := w.attachments.ByIndex(byVolume, kube.UniqueVolumeName(k.Driver, k.Handle))
	known := make(map[string]bool, len(found)) // nodes with an attachment of the computed name (see ownVolume)
	for _, va := range found {
		known[va.Spec.NodeName] = known[va.Spec.NodeName] || va.Spec.Source.InlineVolumeSpec == nil
	}
	for _, pv := range volumes {
		maps.Copy(found, w.attachments.ByIndex(byPersistentVolume, pv.Name))
	}
	names := w.unidentified.of(k)
	for _, node := range nodes {
		if !known[node] {
			names = append(names, kube.AttachmentName(k.Handle, k.Driver, node))
		}
	}
	for _, name := range names {
		if found[name] != nil {
			continue
		}
		if va, ok := w.attachments.Get(name); ok && kube.IsAttachmentOf(va, k) {
			found[name] = va
		}
	}
	return slices.AppendSeq(make([]*storagev1.VolumeAttachment, 0, len(found)), maps.Values(found))
}

// orphanDriver is the driver in the key of an attachment with an unknown volume. It is not a valid driver name.
const orphanDriver = "belay.dev/orphan"

// orphanKey is the key of an attachment with an unknown volume. No pod can need it, so it can only be detached.
func orphanKey(va *storagev1.VolumeAttachment) key { return key{Driver: orphanDriver, Handle: va.Name} }

// orphanUnique stands for the unique name of the volume of an orphan. No node lists it.
func orphanUnique(attachment string) string { return kube.UniqueVolumeName(orphanDriver, attachment) }

// isUnidentified reports whether an attachment has a computed name but does not identify its volume, like those that
// kube-controller-manager creates. Attachments with other names belong to other components and are never changed.
func isUnidentified(va *storagev1.VolumeAttachment) bool {
	_, known := kube.VolumeOfAttachment(va)
	return !known && kube.IsAttachmentName(va.Name)
}

// observeOrphan observes an orphan: its PersistentVolume is gone or is another volume now. If its node listed a
// matching volume, it would belong to that volume's key (S2).
func (w *clusterState) observeOrphan(k key, reads *nodeReads, d writeTracker) snapshot {
	s := snapshot{volumeName: k.Handle}
	s.want.Orphan = true
	s.seen.Newest = w.newest()
	va, ok := w.attachments.Get(k.Handle)
	if !ok || !slices.Contains(w.keysOfAttachment(va), k) {
		return s
	}
	a := w.attachment(k, va, d.deleteMayBeUnderway(va))
	a.Computed = true
	s.seen.Attachments = []attachment.Attachment{a}
	n := w.kubelets.describe(va.Spec.NodeName, orphanUnique(va.Name), w.node(va.Spec.NodeName, w.sourceUnique(va), reads, d))
	n.Reported, n.DetachRequested = false, time.Time{} // these belong to another volume
	s.seen.Nodes = map[attachment.NodeName]attachment.Node{a.Node: n}
	w.addMachines(&s, va.Spec.Attacher)
	return s
}

// orphansAt returns the keys of the orphans on a node.
func (w *clusterState) orphansAt(node string) []key {
	var keys []key
	for _, name := range w.unidentified.at(node) {
		if va, ok := w.attachments.Get(name); ok {
			keys = append(keys, w.keysOfAttachment(va)...)
		}
	}
	return slices.DeleteFunc(keys, func(k key) bool { return k.Driver != orphanDriver })
}

// sourceUnique returns the unique name of the volume that the attachment's PersistentVolume is now, if that volume is
// attached to the node: the driver could confuse the two detaches. A volume that is only listed waits for the orphan.
// No wait is needed if no attacher has started, or if belay-attacher has: it detaches only the volume that it recorded.
func (w *clusterState) sourceUnique(va *storagev1.VolumeAttachment) string {
	if len(va.Finalizers) == 0 || kube.CalledByBelay(va) {
		return ""
	}
	pv, ok := get[*corev1.PersistentVolume](w.volumes, kube.SourceName(va))
	if !ok {
		return ""
	}
	k, ok := kube.KeyOfVolume(pv)
	if !ok {
		return ""
	}
	if _, attached := w.attachments.Get(kube.AttachmentName(k.Handle, k.Driver, va.Spec.NodeName)); !attached {
		return ""
	}
	return kube.UniqueVolumeName(k.Driver, k.Handle)
}

type unidentified struct {
	mu sync.Mutex
	// byPlace holds attachment names by driver and node.
	byPlace map[string]map[string]map[string]bool
	// volumes holds the identified volumes by attachment name.
	volumes map[string]key
}

// update adds or removes an attachment.
func (n *unidentified) update(va *storagev1.VolumeAttachment, in bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	driver, node := va.Spec.Attacher, va.Spec.NodeName
	if in {
		if n.byPlace == nil {
			n.byPlace, n.volumes = map[string]map[string]map[string]bool{}, map[string]key{}
		}
		if n.byPlace[driver] == nil {
			n.byPlace[driver] = map[string]map[string]bool{}
		}
		if n.byPlace[driver][node] == nil {
			n.byPlace[driver][node] = map[string]bool{}
		}
		n.byPlace[driver][node][va.Name] = true
		return
	}
	delete(n.volumes, va.Name)
	delete(n.byPlace[driver][node], va.Name)
	if len(n.byPlace[driver][node]) == 0 {
		delete(n.byPlace[driver], node)
	}
}

// identify records which of them belong to the volume, when a worker processes it. From then on their events enqueue
// the volume; before, each is an orphan.
func (n *unidentified) identify(k key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for node, there := range n.byPlace[k.Driver] {
		if name := kube.AttachmentName(k.Handle, k.Driver, node); there[name] {
			n.volumes[name] = k
		}
	}
}

// of returns the names of those identified as the volume's.
func (n *unidentified) of(k key) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, of := range n.volumes {
		if of == k {
			names = append(names, name)
		}
	}
	return names
}

// at returns the names of those on a node.
func (n *unidentified) at(node string) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, places := range n.byPlace {
		names = slices.AppendSeq(names, maps.Keys(places[node]))
	}
	return names
}

// volume returns the volume that an attachment was identified as.
func (n *unidentified) volume(name string) (key, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k, ok := n.volumes[name]
	return k, ok
}

// trackUnidentified updates the unidentified attachments after an event of an attachment.
func (w *clusterState) trackUnidentified(va *storagev1.VolumeAttachment, gone bool) {
	in := !gone && isUnidentified(va)
	if in {
		if pv, ok := get[*corev1.PersistentVolume](w.volumes, kube.SourceName(va)); ok {
			k, ok := kube.KeyOfVolume(pv)
			in = !ok || !kube.IsAttachmentOf(va, k)
		}
	}
	if in || gone || isUnidentified(va) {
		w.unidentified.update(va, in)
	}
}

// distinct removes duplicates and keeps the order.
func distinct(keys []key) []key {
	if len(keys) < 2 {
		return keys
	}
	seen := make(map[key]bool, len(keys))
	return slices.DeleteFunc(keys, func(k key) bool {
		again := seen[k]
		seen[k] = true
		return again
	})
}

// handled holds VolumeAttachments by name, in 34 bytes for each where a sync.Map takes 125.
type handled struct {
	mu     sync.RWMutex
	byName map[string]*storagev1.VolumeAttachment
}

// of returns nil if there is none.
func (h *handled) of(name string) *storagev1.VolumeAttachment {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.byName[name]
}

func (h *handled) set(va *storagev1.VolumeAttachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byName == nil {
		h.byName = map[string]*storagev1.VolumeAttachment{}
	}
	h.byName[va.Name] = va
}

func (h *handled) remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byName, name)
}
