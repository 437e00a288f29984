package nodeagent

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/nodestatus"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// volumeManager decides on the volumes of the node and performs their steps.
type volumeManager struct {
	*volumeSet

	config   Config
	log      logr.Logger
	client   kubernetes.Interface
	root     *mount.Root
	status   *nodestatus.Status
	pods     *podManager
	plugins  *plugins.Plugins
	records  *recordStore
	facts    *facts
	reports  *reports
	requests *requests
	calls    *driverCalls
	growth   *growth
	tasks    *tasks
	users    *userSearch
	groups   *fsGroups
}

// surroundings are what the rooms of the volumes need of the rest of the agent.
type surroundings struct {
	config   Config
	client   kubernetes.Interface
	root     *mount.Root
	events   record.EventRecorder
	schedule schedule
	volumes  *volumeSet
	status   *nodestatus.Status
	pods     *podManager
	plugins  *plugins.Plugins
}

// newVolumeManager creates a volumeManager and the rooms below it.
func newVolumeManager(s surroundings) *volumeManager {
	set, config, log := s.volumes, s.config, s.config.Logger
	m := &volumeManager{
		volumeSet: set, config: config, log: log, client: s.client, root: s.root, status: s.status, pods: s.pods, plugins: s.plugins,
		records: newRecordStore(config, s.root),
	}
	m.facts = &facts{republishPeriod: config.republishPeriod, records: m.records, pods: s.pods, plugins: s.plugins}
	m.reports = &reports{
		volumeSet: set, config: config, log: log, root: s.root, events: s.events, facts: m.facts, pods: s.pods, plugins: s.plugins,
		blockers: map[nodevolume.Reason]error{},
	}
	m.requests = &requests{
		volumeSet: set, bootID: config.BootID, client: s.client, root: s.root, records: m.records, pods: s.pods, plugins: s.plugins, status: s.status,
	}
	m.calls = &driverCalls{volumeSet: set, config: config, reports: m.reports}
	m.growth = &growth{
		volumeSet: set, config: config, log: log, client: s.client, records: m.records, pods: s.pods, plugins: s.plugins, reports: m.reports,
		requests: m.requests, calls: m.calls,
	}
	m.tasks = &tasks{
		volumeSet: set, config: config, log: log, client: s.client, records: m.records, pods: s.pods, plugins: s.plugins, reports: m.reports,
		schedule: s.schedule, due: workqueue.NewTypedDelayingQueue[periodicTask](),
	}
	m.users = &userSearch{volumeSet: set, log: log, root: s.root}
	m.groups = &fsGroups{volumeSet: set, config: config, log: log, root: s.root, pods: s.pods, reports: m.reports}
	return m
}

// run reconciles each queued volume in its own goroutine until the queue is shut down, so that a driver that hangs blocks only its own
// volumes.
func (m *volumeManager) run(ctx context.Context) {
	worker.Serve(m.queue, func(name string) { m.reconcile(ctx, name) })
}

func (m *volumeManager) shutDown() {
	m.queue.ShutDown()
	m.tasks.due.ShutDown()
}
