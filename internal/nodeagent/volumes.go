package nodeagent

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

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
	serve(m.queue, func(name string) { m.reconcile(ctx, name) })
}

func (m *volumeManager) shutDown() {
	m.queue.ShutDown()
	m.tasks.ShutDown()
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
