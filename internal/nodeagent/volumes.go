package nodeagent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// volumeManager owns the volumes of the node: their lives, what is made for them and what is told of them. Its lock is taken before those of
// the node's status, of the pods and of the plugins, in this order; what it calls there is named by its fields alone.
type volumeManager struct {
	config Config
	log    logr.Logger
	client kubernetes.Interface
	root   *mount.Root
	// records is the directory of the records.
	records *mount.Root
	events  record.EventRecorder
	status  *nodeStatus
	pods    *podManager
	plugins *plugins
	// mounts are the mount tables of all processes.
	mounts mounttable.Reader
	// watches are the goroutines that wait for the end of a process.
	watches sync.WaitGroup
	// metrics is nil if nothing is measured.
	metrics *telemetry.Node
	beat    schedule

	// queue holds the volumes that have to be looked at. It gives one key to one goroutine at a time; that is the only lock on a
	// volume's way.
	queue workqueue.TypedDelayingInterface[string]
	tasks workqueue.TypedDelayingInterface[periodicTask]

	mu sync.Mutex
	// Under mu:
	all map[string]*volume
	// trouble is what is known to be in the way of what a reason waits for.
	trouble map[nodevolume.Reason]error
	// unaccounted holds the names of the records that should be there and are not: of those that
	// cannot be read, and of what is mounted without one. A name begins with its volume's hash.
	unaccounted map[string]struct{}
}

func newVolumeManager(config Config, client kubernetes.Interface, root *mount.Root, events record.EventRecorder, beat schedule) *volumeManager {
	return &volumeManager{
		config: config, log: config.Logger, client: client, root: root, events: events, beat: beat,
		queue: workqueue.NewTypedDelayingQueue[string](),
		tasks: workqueue.NewTypedDelayingQueue[periodicTask](),
		all:   map[string]*volume{}, trouble: map[nodevolume.Reason]error{}, unaccounted: map[string]struct{}{},
	}
}

// run gives each volume that has to be looked at a goroutine of its own, until the queue is shut down: a driver that hangs holds up its
// own volumes and no others.
func (m *volumeManager) run(ctx context.Context) {
	serve(m.queue, func(name string) { m.turn(ctx, name) })
}

func (m *volumeManager) shutDown() {
	m.queue.ShutDown()
	m.tasks.ShutDown()
}

// wanted gives the volumes that a pod wants to their lives.
func (m *volumeManager) wanted(uid types.UID, wants []*wantedVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wants {
		if !m.pods.join(uid, w.name()) {
			return // it went meanwhile
		}
		v := m.volumeNamed(w.name(), w.driver, w.handle, w.inline)
		v.publication(w.key()).want = w
		m.noteReleased(v, time.Now())
		m.wantSize(v, w)
		m.wake(v.name)
	}
}

// released has the volumes of a pod looked at that is not wanted any more. What failed on the way in does not hold up the
// way back.
func (m *volumeManager) released(uid types.UID, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if v := m.all[name]; v != nil {
			for _, its := range v.pods {
				if its.Key.PodUID == string(uid) {
					its.Failure = nodevolume.Failure{}
				}
			}
			m.noteReleased(v, time.Now())
		}
		m.wake(name)
	}
}

// wakeAll has all volumes looked at.
func (m *volumeManager) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.all {
		m.wake(name)
	}
}

// wakeDriver has all volumes of a driver looked at.
func (m *volumeManager) wakeDriver(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		if v.driver == name {
			m.wake(v.name)
		}
	}
}

// driverReconnected: the driver may be another version, and its calls may work again.
func (m *volumeManager) driverReconnected(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		for _, p := range v.pods {
			p.withoutStats = p.withoutStats && v.driver != name
		}
	}
}

// wake has a volume looked at now, whatever back-off runs: something that it may
// have waited for has changed. The caller holds mu.
func (m *volumeManager) wake(name string) {
	v, ok := m.all[name]
	if !ok {
		return
	}
	v.life.Wake()
	m.queue.Add(name)
}

// wakeMisplaced wakes the volumes that some pod waits for and that may be used by some nodes
// only: by its labels this one may have become one of them.
func (m *volumeManager) wakeMisplaced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, v := range m.all {
		if slices.ContainsFunc(v.pods, func(p *podVolume) bool {
			return p.want != nil && p.want.affinity != nil && p.Phase != nodevolume.Confirmed
		}) {
			m.wake(name)
		}
	}
}

// learned wakes the volumes about which something new is known.
func (m *volumeManager) learned(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.wake(name)
	}
}

// handshakes says which of the names that the Node lists at start-up have a record here that was made under the handshake.
// One that was mounted without, while its CSIDriver asked for no attachment, is listed anew if it has to be: an agent
// that died may have been taking it out, and that write may still land. Of what cannot be read nobody knows which it was.
func (m *volumeManager) handshakes(names []string) map[string]nodevolume.Knowledge {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]nodevolume.Knowledge, len(names))
	for _, name := range names {
		v := m.all[name]
		if v == nil {
			v = &volume{}
		}
		doubtful := m.isUnaccounted(name) || v.life.Stage.Phase == nodevolume.Absent && m.mountedByOther(name)
		known[name] = v.life.InUseHandshake(doubtful)
	}
	return known
}

// nodeRead has all volumes looked at once the Node has been read. What it lists in use and may be mounted without a
// record is known by name from here on, and spoken of.
func (m *volumeManager) nodeRead(listed []string) {
	m.mu.Lock()
	for _, name := range listed {
		if driver, handle, ok := kube.ParseUniqueVolumeName(name); ok && m.isUnaccounted(name) {
			m.volumeNamed(name, driver, handle, false)
			m.log.Error(nil, "Node lists a volume in use whose record cannot be read", "volume", name)
		}
	}
	names := slices.Collect(maps.Keys(m.all))
	m.mu.Unlock()
	m.learned(names)
}

// recordCount is how many stages and publishes are recorded.
func (m *volumeManager) recordCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := 0
	for _, v := range m.all {
		if v.life.Stage.Phase != nodevolume.Absent {
			count++
		}
		for _, p := range v.pods {
			if p.Phase != nodevolume.Absent {
				count++
			}
		}
	}
	return count
}
