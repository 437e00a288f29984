package hollow

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Mount is one volume that was mounted on one node from Began to Ended; a zero Ended
// means that it still is. Several pods of a node share one.
type Mount struct {
	Node string
	// Volume is the unique name, as in node.status.volumesAttached.
	Volume    string
	Exclusive bool
	Began     time.Time
	Ended     time.Time
}

// Record is what the hollow kubelets did. Its methods may be called from any goroutine.
type Record struct {
	mu         sync.Mutex
	mounts     []Mount
	now        map[string]map[string]int // volume, node: index into mounts
	violations []string
}

func newRecord() *Record { return &Record{now: map[string]map[string]int{}} }

// Mounts are all mounts there were, in the order of their begin.
func (r *Record) Mounts() []Mount {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mounts)
}

// MountedOn are the nodes on which a volume is mounted now, sorted.
func (r *Record) MountedOn(volume string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodesOf(volume)
}

// nodesOf is MountedOn for those who hold mu.
func (r *Record) nodesOf(volume string) []string {
	names := make([]string, 0, len(r.now[volume]))
	for name := range r.now[volume] {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Violations are the broken promises of the plane, one line each: an exclusive volume
// mounted on two nodes, a report withdrawn while the Node listed the volume in use.
func (r *Record) Violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}

func (r *Record) violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, time.Now().Format(time.StampMilli)+" "+fmt.Sprintf(format, args...))
}

// mounted notes that a node uses a volume from now on.
func (r *Record) mounted(node string, v volume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if others := r.nodesOf(v.name); v.exclusive && len(others) > 0 {
		r.violations = append(r.violations, fmt.Sprintf("%s exclusive volume %s was mounted on %s while mounted on %v",
			now.Format(time.StampMilli), v.name, node, others))
	}
	if r.now[v.name] == nil {
		r.now[v.name] = map[string]int{}
	}
	r.now[v.name][node] = len(r.mounts)
	r.mounts = append(r.mounts, Mount{Node: node, Volume: v.name, Exclusive: v.exclusive, Began: now})
}

// unmounted notes that a node uses a volume no longer.
func (r *Record) unmounted(node, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.now[name][node]
	if !ok {
		return
	}
	r.mounts[at].Ended = time.Now()
	delete(r.now[name], node)
	if len(r.now[name]) == 0 {
		delete(r.now, name)
	}
}
