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
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// Config is documented at belay.dev/belay/node.Config.
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
	Traces      *telemetry.Traces

	// The fields below are set by tests only. complete sets the defaults.

	attachErrorAfter time.Duration
	// limitPeriodUnit is the unit of nodeAllocatableUpdatePeriodSeconds.
	limitPeriodUnit                         time.Duration
	fsGroupEventDelay, fsGroupEventInterval time.Duration
	changeGroup                             func(*mount.Root, context.Context, string, *mount.GroupChange) error
	writeRecord                             func(*mount.Root, string, []byte, mount.Durability) error
	fileLabel                               func(*corev1.SELinuxOptions) (string, error)
	republishPeriod                         time.Duration
	waitEventDelay, claimEventDelay         time.Duration
	// callTimeout, if set, is used instead of RPCTimeout for a call about a volume.
	callTimeout func(method string) time.Duration
	// waitEventDelayOf, if set, is used instead of waitEventDelay for a wait, by its reason and text.
	waitEventDelayOf func(reason nodevolume.Reason, text string) time.Duration
}

const (
	defaultRoot       = "/var/lib/kubelet"
	defaultRPCTimeout = 2 * time.Minute // kubelet's csiTimeout
	defaultSyncPeriod = time.Minute     // kubelet's syncFrequency
	// apiTimeout bounds one call to the API server, which would otherwise end only with the connection.
	apiTimeout = 30 * time.Second
	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

// Mount is documented at belay.dev/belay/node.Mount.
type Mount struct {
	VolumeName string
	Path       string
	// PersistentVolume is set for a volume that the agent does not mount.
	PersistentVolume  *corev1.PersistentVolume
	Block             bool
	ReadOnly          bool
	SELinuxLabel      string
	SupplementalGroup *int64

	Driver, VolumeHandle          string
	FSType                        string
	MountOptions                  []string
	VolumeContext, PublishContext map[string]string
}

// Agent manages the CSI volumes of one node. See belay.dev/belay/node. Its state has four owners, which call each other in one direction
// only: volumeManager calls nodeStatus, podManager and plugins, which call back through handlers without holding their locks.
type Agent struct {
	config Config
	log    logr.Logger
	client kubernetes.Interface
	root   *mount.Root
	// unlock releases the lock on the root.
	unlock func() error
	// broadcaster collects events; Run connects it to the API server.
	broadcaster record.EventBroadcaster
	owner       *recordOwner
	status      *nodeStatus
	pods        *podManager
	plugins     *plugins
	volumes     *volumeManager
	running     running
}

// New creates an agent and loads the records under the root.
func New(config Config) (*Agent, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(kube.WithProtobuf(config.RESTConfig))
	if err != nil {
		return nil, fmt.Errorf("create a client for the API server: %w", err)
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
	owner, err := newRecordOwner(config, root, client)
	if err != nil {
		return nil, errors.Join(config.withRemedy(err), unlock(), root.Close())
	}
	a := &Agent{
		config: config, log: config.Logger, client: client, root: root, unlock: unlock, owner: owner, broadcaster: record.NewBroadcaster(),
	}
	a.wire()
	if err := errors.Join(a.volumes.startMetrics(), a.volumes.rebuild()); err != nil {
		return nil, errors.Join(config.withRemedy(err), a.close())
	}
	return a, nil
}

// wire creates the owners of the agent's state and connects their handlers.
func (a *Agent) wire() {
	events := a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "belay-node", Host: a.config.NodeName})
	schedule := newSchedule()
	volumes := newVolumeManager(a.config, a.client, a.root, events, schedule)
	a.volumes = volumes
	a.pods = newPodManager(a.config, a.client, events, schedule, a.owner.isVerified, podHandlers{
		wanted: volumes.addVolumes, released: volumes.released, changed: volumes.wakeVolumes, mayExpand: volumes.mayExpand, readSize: volumes.readSize,
	})
	a.plugins = newPlugins(a.config, a.root, a.client, a.owner.verified, pluginHandlers{
		changed: volumes.wakeDriver, reconnected: volumes.driverReconnected, csiDriversListed: a.wakeAll, measure: volumes.measureCalls,
		csiDriversUnknown: func(err error) { volumes.setBlocker(err, nodevolume.AttachabilityUnknown) },
	})
	a.status = newNodeStatus(a.config.NodeName, a.client, a.log, nodeHandlers{
		observed: func(node *corev1.Node) {
			a.plugins.observeNode(node)
			a.owner.updateNodeUID(node.UID)
		},
		volumesChanged: volumes.wakeVolumes, relabelled: volumes.wakeWithAffinity, handshakes: volumes.handshakes, started: volumes.nodeRead,
		blocked: func(err error) {
			volumes.setBlocker(err, nodevolume.NodeUnknown, nodevolume.NotReportedInUse, nodevolume.InUseNotCleared)
		},
	})
	a.status.volumesRoot = a.plugins.identity.root
	volumes.status, volumes.pods, volumes.plugins = a.status, a.pods, a.plugins
}

// wakeAll queues every volume and every pod.
func (a *Agent) wakeAll() {
	a.volumes.wakeAll()
	a.pods.wakeAll()
}

// SetPod has the pod's volumes mounted.
func (a *Agent) SetPod(object *corev1.Pod) { a.pods.set(object) }

// RemovePod reports that the pod's containers have ended.
func (a *Agent) RemovePod(uid types.UID) { a.pods.remove(uid) }

// PodEnding reports that the pod has terminated or was deleted in the API, and why its containers may still run. It returns whether the
// agent knows the pod.
func (a *Agent) PodEnding(uid types.UID, why error) bool { return a.pods.ending(uid, why) }

// PodsSynced reports that SetPod was called for every pod of the owner.
func (a *Agent) PodsSynced() { a.pods.setPodsSynced() }

// Pods returns the UIDs of all known pods.
func (a *Agent) Pods() []types.UID { return a.pods.uids() }

// WaitMounted blocks until the pod's volumes are published.
func (a *Agent) WaitMounted(ctx context.Context, uid types.UID) ([]Mount, error) {
	return a.volumes.waitMounted(ctx, uid)
}

// WaitUnmounted blocks until no volume of the pod is published.
func (a *Agent) WaitUnmounted(ctx context.Context, uid types.UID) error {
	return a.volumes.waitUnmounted(ctx, uid)
}

// MountSubPath mounts a part of a mounted volume of the pod, and returns its path.
func (a *Agent) MountSubPath(uid types.UID, s SubPath) (string, error) {
	return a.volumes.mountSubPath(uid, s)
}

// VolumeStats returns the latest stats of a pod's volumes as kubelet reports them.
func (a *Agent) VolumeStats(uid types.UID) []stats.VolumeStats { return a.volumes.stats(uid) }

// close releases everything that New acquired.
func (a *Agent) close() error {
	a.volumes.shutDown()
	a.pods.queue.ShutDown()
	a.plugins.close()
	a.broadcaster.Shutdown()
	a.volumes.stopMetrics()
	err := errors.Join(a.unlock(), a.root.Close())
	if a.volumes.records != nil {
		err = errors.Join(err, a.volumes.records.Close())
	}
	return err
}

// complete sets the defaults and rejects an invalid Config.
func (c *Config) complete() error {
	if c.NodeName == "" {
		return errors.New("node agent: NodeName is required")
	}
	if c.RESTConfig == nil {
		return errors.New("node agent: RESTConfig is required")
	}
	if c.Root == "" {
		c.Root = defaultRoot
	}
	if err := c.checkRights(); err != nil {
		return err
	}
	if c.RPCTimeout == 0 {
		c.RPCTimeout = defaultRPCTimeout
	}
	c.fsGroupEventDelay, c.fsGroupEventInterval = cmp.Or(c.fsGroupEventDelay, defaultFSGroupEventDelay), cmp.Or(c.fsGroupEventInterval, defaultFSGroupEventInterval)
	if c.changeGroup == nil {
		c.changeGroup = (*mount.Root).ChangeGroup
	}
	if c.writeRecord == nil {
		c.writeRecord = (*mount.Root).Write
	}
	if c.fileLabel == nil {
		c.fileLabel = fileLabel
	}
	c.republishPeriod = cmp.Or(c.republishPeriod, defaultRepublishPeriod)
	if c.SyncPeriod == 0 {
		c.SyncPeriod = defaultSyncPeriod
	}
	if c.StatsPeriod == 0 {
		c.StatsPeriod = defaultStatsPeriod
	}
	c.attachErrorAfter, c.limitPeriodUnit = cmp.Or(c.attachErrorAfter, attachErrorAfter), cmp.Or(c.limitPeriodUnit, time.Second)
	c.waitEventDelay, c.claimEventDelay = cmp.Or(c.waitEventDelay, defaultWaitEventDelay), cmp.Or(c.claimEventDelay, defaultClaimEventDelay)
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	c.Logger = c.Logger.WithValues("node", c.NodeName)
	if c.BootID == "" {
		raw, err := os.ReadFile(bootIDFile)
		if err != nil {
			return fmt.Errorf("read the boot ID of this machine: %w", err)
		}
		c.BootID = strings.TrimSpace(string(raw))
	}
	c.RESTConfig = rest.CopyConfig(c.RESTConfig)
	if c.RESTConfig.QPS == 0 && c.RESTConfig.RateLimiter == nil {
		// API priority and fairness in the API server does the throttling.
		c.RESTConfig.QPS = -1
	}
	return nil
}

// Run serves until ctx ends and everything that it started has returned. It returns an OwnerError if the records belong to another Node.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end, err := a.starts(func() { cancel(nil) })
	if err != nil {
		return err
	}
	a.log.Info("Node agent started", "root", a.root.Path("."), "records", a.volumes.recordCount())
	defer a.log.Info("Node agent stopped")
	defer end()
	a.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")})
	if err := a.verifyOwnerOnce(ctx); err != nil {
		return err
	}
	if propagates, err := a.root.IsShared(); err == nil && !propagates {
		a.log.Error(nil, "Mounts below the root directory do not propagate, so that mounts of drivers in containers are not visible outside",
			"root", a.root.Path("."), "remedy", explain.ShareMounts(a.root.Path(".")))
	}
	if !mounttable.SeesAllProcesses() {
		a.log.Error(nil, "Volumes may be unmounted while processes outside of this PID namespace use them", "remedy", explain.ShareProcesses)
	}
	if err := errors.Join(a.root.MakeDir("pods"), a.plugins.open()); err != nil {
		return err
	}
	var running sync.WaitGroup
	// Unmounting needs no API server: it starts before the owner of the records is verified.
	for _, serve := range []func(context.Context){a.plugins.run, a.volumes.run, a.volumes.runTasks, a.pods.run} {
		running.Go(func() { serve(ctx) })
	}
	running.Go(func() {
		if err := a.waitForOwner(ctx); err != nil {
			cancel(err)
			return
		}
		a.serveAPI(ctx)
	})
	a.wakeAll()
	<-ctx.Done()
	a.volumes.shutDown()
	a.pods.queue.ShutDown()
	running.Wait()
	a.volumes.watches.Wait()
	if other, ok := errors.AsType[*OwnerError](context.Cause(ctx)); ok {
		return other
	}
	return nil
}

// serveAPI watches the API and keeps the Node, its status and the CSINode up to date until ctx ends.
func (a *Agent) serveAPI(ctx context.Context) {
	a.pods.removeOrphans()
	var running sync.WaitGroup
	for _, serve := range []func(context.Context){a.plugins.serveAPI, a.status.watch, a.status.write} {
		running.Go(func() { serve(ctx) })
	}
	running.Wait()
}

// Ready returns why no volume can be mounted yet, or nil.
func (a *Agent) Ready() error {
	if err := a.owner.ready(); err != nil {
		return err
	}
	if !a.status.started() {
		return fmt.Errorf("node %s has not been read", a.config.NodeName)
	}
	return a.plugins.ready()
}

// serve processes the keys of a queue concurrently, each key by one goroutine at a time, until the queue is shut down and all of them
// have returned.
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
