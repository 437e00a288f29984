package timeline

import (
	"slices"
	"sync"
	"time"
)

// Kind names what changed. The values appear unchanged in JSON.
type Kind string

// The changes that a volume's life is made of. Each comment says which fields of
// [Change] are set besides At and Kind.
const (
	// PodCreated: Object (namespace/name), UID, Claims, Node if bound at birth.
	PodCreated Kind = "PodCreated"
	// PodBound is the first sight of spec.nodeName: Object, UID, Claims, Node.
	PodBound Kind = "PodBound"
	// PodDeleted is the first sight of a deletionTimestamp: as PodBound.
	PodDeleted Kind = "PodDeleted"
	// ContainersEnded: no container runs any more, as the pod's status says it: as PodBound.
	ContainersEnded Kind = "ContainersEnded"
	// PodRunning: phase Running and every container running: as PodBound.
	PodRunning Kind = "PodRunning"
	// PodGone: the object is gone: as PodBound.
	PodGone Kind = "PodGone"

	// ClaimBound: Object (namespace/name of the claim), Volume (the PV's name).
	ClaimBound Kind = "ClaimBound"

	// InUse, OutOfUse: Volume entered or left the Node's volumesInUse. Volume is
	// the unique volume name here and in the next two.
	InUse    Kind = "InUse"
	OutOfUse Kind = "OutOfUse"
	// Reported, Withdrawn: Volume entered or left the Node's volumesAttached.
	Reported  Kind = "Reported"
	Withdrawn Kind = "Withdrawn"
	// NodeNotReady, NodeReady: the Ready condition left or reached True: Node.
	NodeNotReady Kind = "NodeNotReady"
	NodeReady    Kind = "NodeReady"
	// OutOfService: the out-of-service taint was set: Node.
	OutOfService Kind = "OutOfService"

	// AttachmentCreated: Object (the VolumeAttachment's name), UID, Volume (the
	// PV's name), Node; so for all that follow.
	AttachmentCreated Kind = "AttachmentCreated"
	// AttachmentPrepared: the attacher's finalizer and the node id are both stored.
	AttachmentPrepared Kind = "AttachmentPrepared"
	// AttachmentAttached: status.attached became true.
	AttachmentAttached Kind = "AttachmentAttached"
	// AttachmentDeleted: the deletionTimestamp was set.
	AttachmentDeleted Kind = "AttachmentDeleted"
	// AttachmentGone: the object is gone.
	AttachmentGone Kind = "AttachmentGone"
)

// Change is one moment of the record.
type Change struct {
	At     time.Time `json:"at"`
	Kind   Kind      `json:"kind"`
	Object string    `json:"object,omitempty"`
	UID    string    `json:"uid,omitempty"`
	Node   string    `json:"node,omitempty"`
	// Volume is the PV's name, or the unique volume name for what a Node lists.
	Volume string `json:"volume,omitempty"`
	// Claims of a pod, as namespace/name.
	Claims []string `json:"claims,omitempty"`
}

// Call is one CSI call as the driver saw it.
type Call struct {
	// Method is the bare name, such as "ControllerPublishVolume".
	Method string    `json:"method"`
	Volume string    `json:"volume"` // the volume handle
	Node   string    `json:"node"`   // the CSI node id, in the lab the node's name
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`
	// Failed: the call was answered with an error, or never.
	Failed bool `json:"failed,omitempty"`
}

// Volume is one volume under all its names.
type Volume struct {
	PV     string `json:"pv"`
	Claim  string `json:"claim"`  // namespace/name
	Unique string `json:"unique"` // as the Node lists it
	Handle string `json:"handle"` // as the driver knows it
	Driver string `json:"driver"`
}

// Log keeps changes in the order in which they came. The zero value is ready.
type Log struct {
	mu      sync.Mutex
	changes []Change
	// waiters are called for each change, in its order.
	waiters map[int]func(Change)
	next    int
}

// Add appends changes and calls the listeners.
func (l *Log) Add(changes ...Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range changes {
		l.changes = append(l.changes, c)
		for _, tell := range l.waiters {
			tell(c)
		}
	}
}

// Changes returns a copy of what was recorded so far.
func (l *Log) Changes() []Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.changes)
}

// Listen calls tell for every change until the returned function is called. tell
// runs under the log's lock: it must not block and not call the log.
func (l *Log) Listen(tell func(Change)) (stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiters == nil {
		l.waiters = map[int]func(Change){}
	}
	id := l.next
	l.next++
	l.waiters[id] = tell
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiters, id)
	}
}

// Next returns a channel that receives the first change from now on that fits.
func (l *Log) Next(fits func(Change) bool) (<-chan Change, func()) {
	found := make(chan Change, 1)
	stop := l.Listen(func(c Change) {
		if fits(c) {
			select {
			case found <- c:
			default: // only the first one counts
			}
		}
	})
	return found, stop
}
