package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// Config is what belay.dev/belay/node.Config documents, field by field.
type Config struct {
	NodeName    string
	Root        string
	RESTConfig  *rest.Config
	Logger      logr.Logger
	RPCTimeout  time.Duration
	SyncPeriod  time.Duration
	BootID      string
	MountPoints func() ([]string, error)
	Containers  Containers
	Metrics     prometheus.Registerer
	StatsPeriod time.Duration

	// attachErrorAfter and second are changed by tests alone.
	attachErrorAfter, second time.Duration

	// What tests change: see group.go.
	slowGroup, slowGroupAgain time.Duration
	giveToGroup               func(*mount.Root, context.Context, string, *mount.GroupChange) error
	// writeRecord is where records go on their way to the disk.
	writeRecord func(*mount.Root, string, []byte, mount.Durability) error
	// fileLabel tells SELinux labels as if there were SELinux: see selinux.go.
	fileLabel func(*corev1.SELinuxOptions) (string, error)
	// republishEvery is another one than kubelet's in tests.
	republishEvery time.Duration
	// longWait and patience are the defaults unless a test is in a hurry.
	longWait, patience time.Duration
}

const (
	defaultRoot       = "/var/lib/kubelet"
	defaultRPCTimeout = 2 * time.Minute // kubelet's csiTimeout
	defaultSyncPeriod = time.Minute     // kubelet's syncFrequency
	// apiTimeout bounds one call to the API server, which would otherwise end only
	// with the connection.
	apiTimeout = 30 * time.Second
	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

// Mount is one volume of a pod, ready for its containers.
type Mount struct {
	VolumeName string
	Path       string
	// PersistentVolume is set if the agent does not mount the volume.
	PersistentVolume *corev1.PersistentVolume
	Block            bool
	ReadOnly         bool
	// SELinuxLabel is the label that all files have by the mount itself.
	SELinuxLabel      string
	SupplementalGroup *int64

	Driver, VolumeHandle          string
	FSType                        string
	MountOptions                  []string
	VolumeContext, PublishContext map[string]string
}

// Agent looks after the CSI volumes of one node. See belay.dev/belay/node.
type Agent struct {
	config Config
	log    logr.Logger
	client kubernetes.Interface
	root   *mount.Root
	// unlock lets another agent have the root.
	unlock func() error
	events record.EventRecorder
	// broadcaster is where events go; Run connects it to the API.
	broadcaster record.EventBroadcaster

	// made is the beginning of the moments of together.
	made time.Time

	// volumeQueue and podQueue hold what has to be looked at. A queue gives one key to
	// one goroutine at a time; that is the only lock on a volume's way.
	volumeQueue workqueue.TypedDelayingInterface[string]
	podQueue    workqueue.TypedRateLimitingInterface[types.UID]
	chores      workqueue.TypedDelayingInterface[chore]
	// status and plugins have locks of their own, which are taken after mu, in this order.
	status  *nodeStatus
	plugins *plugins
	owner   *recordOwner
	// mounts are the mount tables of all processes.
	mounts mounttable.Reader
	// watches are the goroutines that wait for the end of a process.
	watches sync.WaitGroup
	// metrics is nil if nothing is measured.
	metrics *telemetry.Node
	running running

	mu sync.Mutex
	// Under mu:
	pods    map[types.UID]*pod
	volumes map[string]*volume
	// podsSaid: the pods' owner has said all it knows. podsSynced: and that is believed.
	podsSaid, podsSynced bool
	// podsFollowed: the pods of the API are known, and of all others the runtime is asked.
	podsFollowed bool
	// trouble is what is known to be in the way of what a reason waits for.
	trouble map[nodevolume.Reason]error
	// unaccounted holds the names of the records that should be there and are not: of those that
	// cannot be read, and of what is mounted without one. A name begins with its volume's hash.
	unaccounted map[string]struct{}
}

// New reads the records under the root and makes an agent that knows them.
func New(config Config) (*Agent, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(kube.Wire(config.RESTConfig))
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	root, err := mount.OpenRoot(config.Root, config.MountPoints)
	if err != nil {
		return nil, config.withRemedy(err)
	}
	if err := root.Inside("belay", "pods", "plugins", "plugins/kubernetes.io", csiDir); err != nil {
		return nil, errors.Join(config.withRemedy(err), root.Close())
	}
	unlock, err := root.Lock(lockFile)
	if errors.Is(err, mount.ErrLocked) {
		err = fmt.Errorf("another node agent runs on %s: %w", root.Path("."), err)
	}
	if err != nil {
		return nil, errors.Join(config.withRemedy(err), root.Close())
	}
	owner, err := newRecordOwner(config.NodeName, root, client, config.Logger)
	if err != nil {
		return nil, errors.Join(config.withRemedy(err), unlock(), root.Close())
	}
	a := &Agent{
		config: config, log: config.Logger, client: client, root: root, unlock: unlock, owner: owner,
		broadcaster: record.NewBroadcaster(),
		volumeQueue: workqueue.NewTypedDelayingQueue[string](),
		podQueue:    workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](lookUpFirst, lookUpMax)),
		chores:      workqueue.NewTypedDelayingQueue[chore](),
		made:        time.Now(),
		pods:        map[types.UID]*pod{},
		volumes:     map[string]*volume{},
		trouble:     map[nodevolume.Reason]error{},
		unaccounted: map[string]struct{}{},
	}
	a.events = a.newRecorder()
	a.plugins = newPlugins(config, root, client, owner.sure, pluginHandlers{
		changed: a.wakeDriver, reconnected: a.driverReconnected,
		csiDriversListed: a.wakeAll, csiDriversUnknown: func(err error) { a.hinders(err, nodevolume.AttachabilityUnknown) },
		measure: a.measureCalls,
	})
	a.status = newNodeStatus(config.NodeName, client, a.log, nodeHandlers{
		seen: func(node *corev1.Node) {
			a.plugins.seeNode(node)
			owner.nodeSeen(node.UID)
		},
		learned: a.learned, relabelled: a.wakeMisplaced, handshakes: a.handshakes, started: a.nodeRead,
		hindered: func(err error) {
			a.hinders(err, nodevolume.NodeUnknown, nodevolume.NotReportedInUse, nodevolume.InUseNotCleared)
		},
	})
	if err := errors.Join(a.startMetrics(), a.rebuild()); err != nil {
		return nil, errors.Join(a.withRemedy(err), a.close())
	}
	return a, nil
}

// close lets go of all that New took.
func (a *Agent) close() error {
	a.volumeQueue.ShutDown()
	a.podQueue.ShutDown()
	a.chores.ShutDown()
	a.plugins.close()
	a.broadcaster.Shutdown()
	a.stopMetrics()
	return errors.Join(a.unlock(), a.root.Close())
}

// complete fills in the defaults and refuses what cannot work.
func (c *Config) complete() error {
	if c.NodeName == "" {
		return errors.New("node agent: no node name given")
	}
	if c.RESTConfig == nil {
		return errors.New("node agent: no way to the API server given")
	}
	if c.Root == "" {
		c.Root = defaultRoot
	}
	if c.RPCTimeout == 0 {
		c.RPCTimeout = defaultRPCTimeout
	}
	c.slowGroup, c.slowGroupAgain = cmp.Or(c.slowGroup, defaultSlowGroup), cmp.Or(c.slowGroupAgain, defaultSlowGroupAgain)
	if c.giveToGroup == nil {
		c.giveToGroup = (*mount.Root).GiveToGroup
	}
	if c.writeRecord == nil {
		c.writeRecord = (*mount.Root).Write
	}
	if c.fileLabel == nil {
		c.fileLabel = fileLabel
	}
	c.republishEvery = cmp.Or(c.republishEvery, defaultRepublishEvery)
	if c.SyncPeriod == 0 {
		c.SyncPeriod = defaultSyncPeriod
	}
	if c.StatsPeriod == 0 {
		c.StatsPeriod = defaultStatsPeriod
	}
	c.attachErrorAfter, c.second = cmp.Or(c.attachErrorAfter, attachErrorAfter), cmp.Or(c.second, time.Second)
	c.longWait, c.patience = cmp.Or(c.longWait, defaultLongWait), cmp.Or(c.patience, defaultPatience)
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	if c.BootID == "" {
		raw, err := os.ReadFile(bootIDFile)
		if err != nil {
			return fmt.Errorf("learn the boot ID of this machine: %w", err)
		}
		c.BootID = strings.TrimSpace(string(raw))
	}
	c.RESTConfig = rest.CopyConfig(c.RESTConfig)
	if c.RESTConfig.QPS == 0 && c.RESTConfig.RateLimiter == nil {
		// The API server's own priority and fairness holds back who asks too much.
		c.RESTConfig.QPS = -1
	}
	return nil
}

// Run serves until ctx ends and everything that it started has returned. It returns an OwnerError
// if the records are another Node's.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end, err := a.starts(func() { cancel(nil) })
	if err != nil {
		return err
	}
	defer end()
	a.startEvents()
	if err := a.lookForOwner(ctx); err != nil {
		return err
	}
	if propagates, err := a.root.Propagates(); err == nil && !propagates {
		a.log.Info("Mounts below the root do not propagate; drivers that run in containers mount out of sight (remedy: mount --rbind ROOT ROOT && mount --make-rshared ROOT)",
			"root", a.root.Path("."))
	}
	if !mounttable.SeesAll() {
		a.log.Info("The agent sees the processes of its own pid namespace alone; what else has a volume mounted is not found (remedy in a container: hostPID; a node that is a container itself is well)")
	}
	if err := errors.Join(a.root.MakeDir("pods"), a.plugins.open()); err != nil {
		return err
	}
	var running sync.WaitGroup
	// The way back needs no API: it begins also while nobody can tell whose API that is.
	for _, serve := range []func(context.Context){a.plugins.run, a.serveVolumes, a.servePods, a.serveChores} {
		running.Go(func() { serve(ctx) })
	}
	running.Go(func() {
		if err := a.knowOwner(ctx); err != nil {
			cancel(err)
			return
		}
		a.serveAPI(ctx)
	})
	a.wakeAll()
	<-ctx.Done()
	a.volumeQueue.ShutDown()
	a.podQueue.ShutDown()
	a.chores.ShutDown()
	running.Wait()
	a.watches.Wait()
	if other, ok := errors.AsType[*OwnerError](context.Cause(ctx)); ok {
		return other
	}
	return nil
}

// serveAPI follows the API, and writes what the cluster must know of this node, until ctx ends.
func (a *Agent) serveAPI(ctx context.Context) {
	a.mu.Lock()
	a.endSilent()
	a.mu.Unlock()
	var running sync.WaitGroup
	for _, serve := range []func(context.Context){a.plugins.serveAPI, a.status.watch, a.status.write} {
		running.Go(func() { serve(ctx) })
	}
	running.Wait()
}

// Ready says what is missing before volumes can be mounted; nil if nothing.
func (a *Agent) Ready() error {
	if err := a.owner.ready(); err != nil {
		return err
	}
	if !a.status.started() {
		return fmt.Errorf("node %s has not been read", a.config.NodeName)
	}
	return a.plugins.ready()
}

// serveVolumes gives each volume that has to be looked at a goroutine of its
// own: a driver that hangs holds up its own volumes and no others.
func (a *Agent) serveVolumes(ctx context.Context) {
	serve(a.volumeQueue, func(name string) { a.turn(ctx, name) })
}

func (a *Agent) servePods(ctx context.Context) {
	serve(a.podQueue, func(uid types.UID) {
		switch err := a.lookUp(ctx, uid); {
		case err == nil:
			a.podQueue.Forget(uid)
		case ctx.Err() == nil:
			a.log.V(1).Info("Volumes of pod not known yet", "pod", uid, "problem", err.Error())
			a.podQueue.AddRateLimited(uid)
		}
	})
}

// serve works on all keys of a queue side by side, on each by one goroutine at a
// time, until the queue is shut down and the last one has returned.
func serve[K comparable](queue workqueue.TypedInterface[K], work func(K)) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		key, down := queue.Get()
		if down {
			return
		}
		running.Go(func() {
			defer queue.Done(key)
			work(key)
		})
	}
}

// wakeAll has every volume and every pod looked at.
func (a *Agent) wakeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.volumes {
		a.wake(name)
	}
	for uid := range a.pods {
		a.podQueue.Add(uid)
	}
}

// wakeDriver has all volumes of a driver looked at.
func (a *Agent) wakeDriver(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.volumes {
		if v.driver == name {
			a.wake(v.name)
		}
	}
}

// driverReconnected: the driver may be another version, and its calls may work again.
func (a *Agent) driverReconnected(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.volumes {
		for _, p := range v.pods {
			p.withoutStats = p.withoutStats && v.driver != name
		}
	}
}

// moments is how often within a period something that comes each period may be done.
const moments = 12

// together stretches a pause of something that comes each period up to the next of the moments at
// which such things are done. On a node at rest most of the processor time is that of waking up: two
// dozen times a second for 500 pods, were each to come at a time of its own.
func (a *Agent) together(pause, period time.Duration) time.Duration {
	grid := period / moments
	if grid <= 0 {
		return pause
	}
	late := (time.Since(a.made) + pause) % grid
	return pause + grid - late
}

// wake has a volume looked at now, whatever back-off runs: something that it may
// have waited for has changed. The caller holds mu.
func (a *Agent) wake(name string) {
	v, ok := a.volumes[name]
	if !ok {
		return
	}
	v.life.Wake()
	a.volumeQueue.Add(name)
}
