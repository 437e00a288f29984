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
	"belay.dev/belay/internal/nodeagent/nodestatus"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// volumeManager owns the volumes of the node and performs their steps. Its lock is taken before those of nodestatus, podManager and
// plugins, in this order.
type volumeManager struct {
	config Config
	log    logr.Logger
	client kubernetes.Interface
	root   *mount.Root
	// records is the directory with the records.
	records *mount.Root
	events  record.EventRecorder
	status  *nodestatus.Status
	pods    *podManager
	plugins *plugins.Plugins
	// mounts are the mount tables of all processes.
	mounts mounttable.Reader
	// watches are the goroutines that wait for the exit of a process.
	watches sync.WaitGroup
	// metrics is nil if Config.Metrics is not set.
	metrics  *telemetry.Node
	schedule schedule

	// queue has the volumes to reconcile. It hands a key to one goroutine at a time; there is no other lock per volume.
	queue workqueue.TypedDelayingInterface[string]
	tasks workqueue.TypedDelayingInterface[periodicTask]

	mu sync.Mutex
	// Under mu:
	all map[string]*volume
	// blockers are the errors that block waits for a reason.
	blockers map[nodevolume.Reason]error
	// unaccounted has the names of records that cannot be read or are missing for a mount. A name begins with its volume's hash.
	unaccounted map[string]struct{}

	// ended is closed once nothing will be mounted or unmounted any more.
	ended chan struct{}
}

func newVolumeManager(config Config, client kubernetes.Interface, root *mount.Root, events record.EventRecorder, schedule schedule) *volumeManager {
	return &volumeManager{
		config: config, log: config.Logger, client: client, root: root, events: events, schedule: schedule,
		queue: workqueue.NewTypedDelayingQueue[string](),
		tasks: workqueue.NewTypedDelayingQueue[periodicTask](),
		all:   map[string]*volume{}, blockers: map[nodevolume.Reason]error{}, unaccounted: map[string]struct{}{},
		ended: make(chan struct{}),
	}
}

// run reconciles each queued volume in its own goroutine until the queue is shut down, so that a driver that hangs blocks only its own
// volumes.
func (m *volumeManager) run(ctx context.Context) {
	worker.Serve(m.queue, func(name string) { m.reconcile(ctx, name) })
}

func (m *volumeManager) shutDown() {
	m.queue.ShutDown()
	m.tasks.ShutDown()
}

// recordCount is the number of recorded stages and publishes.
func (m *volumeManager) recordCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := 0
	for _, v := range m.all {
		if v.state.Stage.Phase != nodevolume.Absent {
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
