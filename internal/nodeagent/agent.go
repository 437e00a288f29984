package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodeagent/nodestatus"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodevolume"
)

// Agent manages the CSI volumes of one node. See belay.dev/belay/node. Its state has four owners with a lock each, which call each other in
// one direction only: the rooms of the volumes call nodestatus, podManager and plugins, which call back through handlers without holding
// their locks.
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
	status      *nodestatus.Status
	pods        *podManager
	plugins     *plugins.Plugins
	volumes     *volumeManager
	waits       *mountWaits
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
	if err := errors.Join(a.volumes.reports.startMetrics(), a.volumes.rebuild()); err != nil {
		return nil, errors.Join(config.withRemedy(err), a.close())
	}
	return a, nil
}

// wire creates the rooms of the agent and connects their handlers, which run only later.
func (a *Agent) wire() {
	events := a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "belay-node", Host: a.config.NodeName})
	schedule, set := newSchedule(), newVolumeSet()
	a.pods = newPodManager(a.config, a.client, events, schedule, a.owner.isVerified, podHandlers{
		wanted:    func(uid types.UID, volumes []*volumeToMount) { a.volumes.addVolumes(uid, volumes) },
		released:  func(uid types.UID, volumes []string) { a.volumes.released(uid, volumes) },
		changed:   set.wakeVolumes,
		mayExpand: func(w *volumeToMount) bool { return a.volumes.growth.mayExpand(w) },
		readSize: func(ctx context.Context, w *volumeToMount, version string) error {
			return a.volumes.growth.readSize(ctx, w, version)
		},
	})
	volumesRoot := a.config.BootID + " " + a.root.Path(".")
	a.plugins = plugins.New(plugins.Config{
		NodeName: a.config.NodeName, Root: a.root, VolumesRoot: volumesRoot, Client: a.client, Log: a.log, Verified: a.owner.verified,
		RPCTimeout: a.config.RPCTimeout, LimitPeriodUnit: a.config.limitPeriodUnit,
	}, plugins.Handlers{
		Changed: set.wakeDriver, CSIDriversListed: a.wakeAll,
		Measure: func(driver string) func(csi.Call) { return a.volumes.reports.measureCalls(driver) },
		Reconnected: func(driver string) {
			a.volumes.tasks.driverReconnected(driver)
			a.config.reconnected(driver)
		},
		CSIDriversUnknown: func(err error) { a.volumes.reports.setBlocker(err, nodevolume.AttachabilityUnknown) },
	})
	a.status = nodestatus.New(nodestatus.Config{NodeName: a.config.NodeName, VolumesRoot: volumesRoot, Client: a.client, Log: a.log}, nodestatus.Handlers{
		Observed: func(node *corev1.Node) {
			a.plugins.ObserveNode(node)
			a.owner.updateNodeUID(node.UID)
		},
		VolumesChanged: set.wakeVolumes, Relabelled: set.wakeWithAffinity,
		Handshakes: func(names []string) map[string]nodevolume.Knowledge { return a.volumes.handshakes(names) },
		Started:    func(listed []string) { a.volumes.nodeRead(listed) },
		Blocked: func(err error) {
			a.volumes.reports.setBlocker(err, nodevolume.NodeUnknown, nodevolume.NotReportedInUse, nodevolume.InUseNotCleared)
		},
	})
	a.volumes = newVolumeManager(surroundings{
		config: a.config, client: a.client, root: a.root, events: events, schedule: schedule, volumes: set,
		status: a.status, pods: a.pods, plugins: a.plugins,
	})
	a.waits = &mountWaits{volumeSet: set, root: a.root, pods: a.pods, reports: a.volumes.reports, ended: make(chan struct{})}
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
	return a.waits.waitMounted(ctx, uid)
}

// WaitUnmounted blocks until no volume of the pod is published.
func (a *Agent) WaitUnmounted(ctx context.Context, uid types.UID) error {
	return a.waits.waitUnmounted(ctx, uid)
}

// MountSubPath mounts a part of a mounted volume of the pod, and returns its path.
func (a *Agent) MountSubPath(uid types.UID, s SubPath) (string, error) {
	return a.waits.mountSubPath(uid, s)
}

// VolumeStats returns the latest stats of a pod's volumes as kubelet reports them.
func (a *Agent) VolumeStats(uid types.UID) []stats.VolumeStats { return a.volumes.tasks.stats(uid) }

// close releases everything that New acquired.
func (a *Agent) close() error {
	a.volumes.shutDown()
	close(a.waits.ended)
	a.pods.queue.ShutDown()
	a.plugins.Close()
	a.broadcaster.Shutdown()
	a.volumes.reports.stopMetrics()
	return errors.Join(a.unlock(), a.root.Close(), a.volumes.records.close())
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
	if err := errors.Join(a.root.MakeDir("pods"), a.plugins.Open()); err != nil {
		return err
	}
	var running sync.WaitGroup
	// Unmounting needs no API server: it starts before the owner of the records is verified.
	for _, serve := range []func(context.Context){a.plugins.Run, a.volumes.run, a.volumes.tasks.runTasks, a.pods.run} {
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
	a.volumes.users.watches.Wait()
	if other, ok := errors.AsType[*OwnerError](context.Cause(ctx)); ok {
		return other
	}
	return nil
}

// serveAPI watches the API and keeps the Node, its status and the CSINode up to date until ctx ends.
func (a *Agent) serveAPI(ctx context.Context) {
	a.pods.removeOrphans()
	var running sync.WaitGroup
	for _, serve := range []func(context.Context){a.plugins.ServeAPI, a.status.Run} {
		running.Go(func() { serve(ctx) })
	}
	running.Wait()
}

// Ready returns why no volume can be mounted yet, or nil.
func (a *Agent) Ready() error {
	if err := a.owner.ready(); err != nil {
		return err
	}
	if !a.status.Started() {
		return fmt.Errorf("node %s has not been read", a.config.NodeName)
	}
	return a.plugins.Ready()
}
