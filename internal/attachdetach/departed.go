package attachdetach

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// departure is what is left of a Node that was deleted. Its in-use list is all that
// says whether a volume was in use.
type departure struct {
	node  *corev1.Node // its last version
	since time.Time
	// used are the volumes without a VolumeAttachment that this run of the machine used
	// when it was last heard of. They have no object that could remember it, so this is
	// kept when the Node comes back, until it lists them itself or was restarted.
	used map[string]bool
}

// lettings are volumes that one Node object listed in use and then no longer. It is
// heeded at each event: whoever decides may see only the last of several.
type lettings struct {
	uid     types.UID
	volumes map[string]bool
}

// heedLettingGo remembers what a Node let go that was attached before this Node object
// was made: of everything else its list alone is believed.
func (w *world) heedLettingGo(before, after *corev1.Node) {
	for _, v := range before.Status.VolumesInUse {
		key, ok := keyOfName(string(v))
		if !ok || inUse(after, string(v)) {
			continue
		}
		va, ok := w.attachments.Get(kube.AttachmentName(key.Handle, key.Driver, after.Name))
		if !ok || recordedMachine(va).NodeUID == string(after.UID) {
			continue
		}
		w.mu.Lock()
		if w.letGo[after.Name].uid != after.UID {
			w.letGo[after.Name] = lettings{uid: after.UID, volumes: map[string]bool{}}
		}
		w.letGo[after.Name].volumes[string(v)] = true
		w.mu.Unlock()
	}
}

// hasLetGo tells whether this Node object was seen to let the volume go.
func (w *world) hasLetGo(node *corev1.Node, unique string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.letGo[node.Name]
	return l.uid == node.UID && l.volumes[unique]
}

// depart remembers a Node that was deleted.
func (w *world) depart(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.letGo, node.Name)
	d := departure{node: node, since: time.Now(), used: map[string]bool{}}
	if before, ok := w.departed[node.Name]; ok && sameRun(before.node, node) {
		maps.Copy(d.used, before.used)
	}
	for _, v := range node.Status.VolumesInUse {
		if key, ok := keyOfName(string(v)); ok && kube.Unattached(key.Driver) {
			d.used[string(v)] = true
		}
	}
	w.departed[node.Name] = d
}

// arrive heeds the word of a Node that came back or changed: what it lists in use it
// will also say when it no longer does. It returns the volumes that its coming may
// matter to and that it need not list itself.
func (w *world) arrive(node *corev1.Node, anew bool) []key {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.departed[node.Name]
	if !ok {
		return nil
	}
	used := maps.Clone(d.used)
	for _, v := range node.Status.VolumesInUse {
		delete(d.used, string(v))
	}
	if len(d.used) == 0 || !sameRun(d.node, node) {
		delete(w.departed, node.Name)
	} else if !anew {
		return nil // what it lists wakes by itself
	}
	var keys []key
	for name := range used {
		if k, ok := keyOfName(name); ok {
			keys = append(keys, k)
		}
	}
	return keys
}

// forget drops a Node that was deleted once nothing is attached to it any more.
func (w *world) forget(name string) {
	attached := len(w.attachments.ByIndex(byNode, name)) > 0
	w.mu.Lock()
	defer w.mu.Unlock()
	if !attached {
		delete(w.letGo, name)
	}
	if d, ok := w.departed[name]; ok && !attached && len(d.used) == 0 {
		delete(w.departed, name)
	}
}

// lastSeen returns what is left of a Node that was deleted.
func (w *world) lastSeen(name string) (departure, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.departed[name]
	d.used = maps.Clone(d.used)
	return d, ok
}

// departedUsing gives the nodes that used the volume when they went, also where they
// have come back since and have not said anything about it.
func (w *world) departedUsing(unique string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name, d := range w.departed {
		if d.used[unique] {
			names = append(names, name)
		}
	}
	return names
}

// usedBefore tells whether the machine of a Node that came back used the volume when
// the Node went.
func (w *world) usedBefore(name, unique string) bool {
	d, ok := w.lastSeen(name)
	return ok && d.used[unique]
}

// sameRun tells whether two Node objects may stand for one run of one machine.
func sameRun(a, b *corev1.Node) bool {
	differ := func(x, y string) bool { return x != "" && y != "" && x != y }
	m, n := machineOf(a), machineOf(b)
	return !differ(m.BootID, n.BootID) && !differ(m.SystemUUID, n.SystemUUID)
}
