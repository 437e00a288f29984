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

// attachmentVolume finds the volume of an attachment in the object alone.
func attachmentVolume(obj any) ([]string, error) {
	if k, ok := ownVolume(obj.(*storagev1.VolumeAttachment)); ok {
		return []string{kube.UniqueVolumeName(k.Driver, k.Handle)}, nil
	}
	return nil, nil
}

// ownVolume reads the volume from an inline source or from belay's annotation. The
// annotation is believed only where the object's name confirms it.
func ownVolume(va *storagev1.VolumeAttachment) (key, bool) {
	if inline := va.Spec.Source.InlineVolumeSpec; inline != nil && inline.CSI != nil {
		return key{Driver: va.Spec.Attacher, Handle: inline.CSI.VolumeHandle}, true
	}
	if handle, ok := va.Annotations[kube.VolumeHandleAnnotation]; ok {
		k := key{Driver: va.Spec.Attacher, Handle: handle}
		return k, computed(va, k)
	}
	return key{}, false
}

// computed tells whether the attachment has the name that kubelet and every
// attach/detach controller give to this volume on its node.
func computed(va *storagev1.VolumeAttachment, k key) bool {
	return va.Spec.Attacher == k.Driver && va.Name == kube.AttachmentName(k.Handle, k.Driver, va.Spec.NodeName)
}

// keysOfAttachment are the volumes that the attachment may be one of: by what it says
// itself, by its PersistentVolume, and by its name among what its node lists. Where
// they disagree, as with a PersistentVolume that was made anew for another volume, it
// counts for all of them. One whose name no volume confirms is an orphan.
func (w *clusterState) keysOfAttachment(va *storagev1.VolumeAttachment) []key {
	var keys []key
	confirmed := false
	add := func(k key, ok bool) {
		if ok {
			keys = append(keys, k)
			confirmed = confirmed || computed(va, k)
		}
	}
	add(ownVolume(va))
	if pv, ok := get[*corev1.PersistentVolume](w.volumes, sourceName(va)); ok {
		add(kube.KeyOfVolume(pv))
	}
	if !confirmed {
		add(w.nameless.volume(va.Name))
	}
	if !confirmed && kube.IsAttachmentName(va.Name) {
		add(w.listedAs(va))
	}
	if !confirmed && isNameless(va) {
		keys = append(keys, orphanKey(va))
	}
	return distinct(keys)
}

// listedAs finds the volume of an attachment by its name among those that its node
// lists, or listed last.
func (w *clusterState) listedAs(va *storagev1.VolumeAttachment) (key, bool) {
	node, ok := w.nodes.Get(va.Spec.NodeName)
	if !ok {
		if node, ok = w.lastSeen(va.Spec.NodeName); !ok {
			return key{}, false
		}
	}
	names, _ := nodeVolumes(node)
	for _, name := range names {
		if k, ok := keyOfName(name); ok && computed(va, k) {
			return k, true
		}
	}
	return key{}, false
}

func keyOfName(unique string) (key, bool) {
	driver, handle, ok := kube.ParseUniqueVolumeName(unique)
	return key{Driver: driver, Handle: handle}, ok
}

// attachmentsOf gives every attachment of the volume that can be known as one:
// by what it says itself, by its PersistentVolumes, and by its name, at the nodes
// that have to do with the volume and at those whose attachments say nothing else.
func (w *clusterState) attachmentsOf(k key, volumes []*corev1.PersistentVolume, nodes []string) []*storagev1.VolumeAttachment {
	found := w.attachments.ByIndex(byVolume, kube.UniqueVolumeName(k.Driver, k.Handle))
	known := make(map[string]bool, len(found)) // nodes whose attachment has the computed name: see ownVolume
	for _, va := range found {
		known[va.Spec.NodeName] = known[va.Spec.NodeName] || va.Spec.Source.InlineVolumeSpec == nil
	}
	for _, pv := range volumes {
		maps.Copy(found, w.attachments.ByIndex(byPersistentVolume, pv.Name))
	}
	names := w.nameless.of(k)
	for _, node := range nodes {
		if !known[node] {
			names = append(names, kube.AttachmentName(k.Handle, k.Driver, node))
		}
	}
	for _, name := range names {
		if found[name] != nil {
			continue
		}
		if va, ok := w.attachments.Get(name); ok && computed(va, k) {
			found[name] = va
		}
	}
	return slices.AppendSeq(make([]*storagev1.VolumeAttachment, 0, len(found)), maps.Values(found))
}

// orphanDriver marks the key of an attachment whose volume nobody can tell. No driver
// has such a name.
const orphanDriver = "belay.dev/orphan"

// orphanKey stands for the unknown volume of one attachment. Such a key can only be
// detached: no pod can want it.
func orphanKey(va *storagev1.VolumeAttachment) key { return key{Driver: orphanDriver, Handle: va.Name} }

// isNameless tells of an attachment under a computed name that does not say itself
// which volume it is of: upstream makes such. Under another name it is somebody's own,
// and never touched.
func isNameless(va *storagev1.VolumeAttachment) bool {
	_, known := ownVolume(va)
	return !known && kube.IsAttachmentName(va.Name)
}

// orphan takes the snapshot of an attachment under a computed name whose
// PersistentVolume is gone or is another volume by now. If its node listed a volume that
// gives this name it would be no orphan (S2): that volume's key would have it.
func (w *clusterState) orphan(k key, t *turn, d doubts) snapshot {
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
	n := w.node(va.Spec.NodeName, w.sourceUnique(va), t, d)
	n.Reported, n.DetachRequested = false, time.Time{} // what the node lists is another volume's
	s.seen.Nodes = map[attachment.NodeName]attachment.Node{a.Node: n}
	return s
}

// orphansAt are the keys of the orphans at a node.
func (w *clusterState) orphansAt(node string) []key {
	var keys []key
	for _, name := range w.nameless.at(node) {
		if va, ok := w.attachments.Get(name); ok {
			keys = append(keys, w.keysOfAttachment(va)...)
		}
	}
	return slices.DeleteFunc(keys, func(k key) bool { return k.Driver != orphanDriver })
}

// sourceUnique is the unique name of the volume that the attachment's PersistentVolume
// is now, if that is attached to the node: the driver may take a detach of the one for a
// detach of the other. What the node merely lists, before the volume can be attached,
// waits for the orphan to go. Nothing has to wait where no attacher has begun, or where
// belay-attacher has: it detaches the volume that it recorded, and no other.
func (w *clusterState) sourceUnique(va *storagev1.VolumeAttachment) string {
	if len(va.Finalizers) == 0 || kube.CalledByBelay(va) {
		return ""
	}
	pv, ok := get[*corev1.PersistentVolume](w.volumes, sourceName(va))
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

// nameless holds the attachments whose volume neither they nor a PersistentVolume
// tell: few, ever. A volume finds its own among them by name.
type nameless struct {
	mu sync.Mutex
	// byPlace holds their names by driver and node.
	byPlace map[string]map[string]map[string]bool
	// volumes holds what was found.
	volumes map[string]key
}

// note keeps the set up to date with one attachment, which is there or gone.
func (n *nameless) note(va *storagev1.VolumeAttachment, in bool) {
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

// claim records which of them belong to the volume, when a worker takes it up: from then on
// their events wake the volume. Until then each is an orphan.
func (n *nameless) claim(k key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for node, there := range n.byPlace[k.Driver] {
		if name := kube.AttachmentName(k.Handle, k.Driver, node); there[name] {
			n.volumes[name] = k
		}
	}
}

// of gives the names of those that the volume has claimed.
func (n *nameless) of(k key) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, of := range n.volumes {
		if of == k {
			names = append(names, name)
		}
	}
	return names
}

// at gives the names of those at a node.
func (n *nameless) at(node string) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, places := range n.byPlace {
		names = slices.AppendSeq(names, maps.Keys(places[node]))
	}
	return names
}

// volume is what was found to be the volume of the attachment of that name.
func (n *nameless) volume(name string) (key, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k, ok := n.volumes[name]
	return k, ok
}

// sort keeps the attachment among the nameless exactly as long as it is one.
func (w *clusterState) sort(va *storagev1.VolumeAttachment, gone bool) {
	in := !gone && isNameless(va)
	if in {
		if pv, ok := get[*corev1.PersistentVolume](w.volumes, sourceName(va)); ok {
			k, ok := kube.KeyOfVolume(pv)
			in = !ok || !computed(va, k)
		}
	}
	if in || gone || isNameless(va) {
		w.nameless.note(va, in)
	}
}

// distinct drops repetitions and keeps the order.
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
