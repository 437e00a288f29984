package attachdetach

import (
	"sync"

	"belay.dev/belay/internal/attachment"
)

// doubts are the volumes that a machine listed in use while they were attached to its predecessor under the name of the node: it may have
// mounted them because of the predecessor's report. Their next attachment there must not rest on the same Node object: a kubelet that restarts
// leaves off its list what it finds mounted and not reported (attachment.MayBeSameRun).
type doubts struct {
	mu      sync.Mutex
	volumes map[string]map[string]string // the UID of the Node, by node and unique name
}

// add records what the present Node listed, if the volume was another machine's.
func (d *doubts) add(unique string, s attachment.ForceDetach, n attachment.Node) {
	if s.Reason != attachment.NodeReplaced || n.Exists != attachment.Yes || n.InUse != attachment.Yes {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volumes == nil {
		d.volumes = map[string]map[string]string{}
	}
	if d.volumes[string(s.Node)] == nil {
		d.volumes[string(s.Node)] = map[string]string{}
	}
	d.volumes[string(s.Node)][unique] = n.Machine.NodeUID
}

// uid returns the UID of the Node to record with the next attachment of the volume there.
func (d *doubts) uid(unique string, s attachment.Attach) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if uid, ok := d.volumes[string(s.Node)][unique]; ok && uid == s.Machine.NodeUID {
		return attachment.InDoubt
	}
	return s.Machine.NodeUID
}

// end forgets a volume that was attached again.
func (d *doubts) end(unique string, node attachment.NodeName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delete(d.volumes[string(node)], unique); len(d.volumes[string(node)]) == 0 {
		delete(d.volumes, string(node))
	}
}

// forget drops a deleted Node.
func (d *doubts) forget(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, node)
}
