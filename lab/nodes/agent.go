package nodes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/node"
)

func nameSelector(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}

// runAgent is a belay node's agent: the Node and its Lease, the CSI volumes (belay.dev/
// belay/node), the pods, and the server for their logs. When it ends, the containers
// keep running.
func runAgent(command *cobra.Command, config Config, flags AgentFlags) error {
	if flags.verbosity != 0 {
		config.Verbosity = flags.verbosity
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(os.Stderr), textlogger.Verbosity(config.Verbosity)))
	klog.SetLogger(logger)
	ctx := klog.NewContext(command.Context(), logger)
	connection, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig of node %s: %w", config.Name, err)
	}
	connection.QPS = -1 // no client-side throttling
	client, err := kubernetes.NewForConfig(kube.WithProtobuf(connection))
	if err != nil {
		return fmt.Errorf("make client of node %s: %w", config.Name, err)
	}
	traces, stopTraces := telemetry.StartTraceProvider(ctx, "belay-node", "")
	defer stopTraces()
	volumeAgent, err := node.New(node.Config{
		NodeName: config.Name, Root: config.RootDir(), RESTConfig: rest.CopyConfig(connection), Logger: logger.WithName("volumes"),
		Metrics: legacyregistry.Registerer(), StatsPeriod: flags.statsPeriod, TracerProvider: traces,
	})
	if err != nil {
		return fmt.Errorf("make volume agent of node %s: %w", config.Name, err)
	}
	registered, err := newRegistration(config, client)
	if err != nil {
		return err
	}
	object, err := registerPatiently(ctx, registered)
	if err != nil {
		return err
	}
	events, stopEvents := newRecorder(client, config.Name)
	defer stopEvents()
	pods := newPods(runtimeDeps{config: config, client: client, volumes: volumeAgent, events: events})
	server, err := newLogServer(config, client, pods)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	running.Go(func() {
		if err := volumeAgent.Run(ctx); err != nil {
			cancel(fmt.Errorf("volume agent of node %s: %w", config.Name, err))
		}
	})
	running.Go(func() { registered.renewLease(ctx, object) })
	running.Go(func() { registered.stayReady(ctx) })
	running.Go(func() { server.serve(ctx) })
	running.Go(func() { pods.run(ctx, volumeAgent.PodsSynced) })
	running.Wait()
	if cause := context.Cause(ctx); command.Context().Err() == nil {
		return cause
	}
	return nil
}

// registerPatiently tries again while the API server is not there.
func registerPatiently(ctx context.Context, registered *registration) (*corev1.Node, error) {
	pause := shortestRetry
	for {
		object, err := registered.register(ctx)
		if err == nil {
			return object, nil
		}
		klog.FromContext(ctx).Error(err, "node is not registered, trying again")
		if !patience(ctx, &pause) {
			return nil, err
		}
	}
}

func newRecorder(client kubernetes.Interface, name string) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "belay-node", Host: name}), broadcaster.Shutdown
}

// pods keeps all pods of the node.
type pods struct {
	runtimeDeps
	running sync.WaitGroup

	mu      sync.Mutex
	workers map[types.UID]*podWorker // guarded by mu
}

func newPods(deps runtimeDeps) *pods {
	return &pods{runtimeDeps: deps, workers: map[types.UID]*podWorker{}}
}

// run follows the pods that are bound to the node until ctx ends. synced is called
// once every pod of the API server is known, and those that are not there any more have ended.
func (p *pods) run(ctx context.Context, synced func()) {
	selector := fields.OneTermEqualSelector("spec.nodeName", p.config.Name)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(p.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, selector),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { p.set(ctx, object) },
			UpdateFunc: func(before, object any) {
				// A pod that was deleted and created again under its name may come as one update.
				if old, ok := before.(*corev1.Pod); ok && old.UID != object.(*corev1.Pod).UID {
					p.remove(before)
				}
				p.set(ctx, object)
			},
			DeleteFunc: func(object any) {
				if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = last.Obj
				}
				p.remove(object)
			},
		},
	})
	p.running.Go(func() { informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		// That all pods were set says that no process is left of any other.
		if err := p.endForgotten(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Containers of pods that are gone may run; their volumes stay mounted")
		} else {
			synced()
		}
	}
	<-ctx.Done()
	p.running.Wait()
}

// set takes a pod, new or changed.
func (p *pods) set(ctx context.Context, object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	worker := p.workers[pod.UID]
	p.mu.Unlock()
	if worker != nil {
		worker.update(pod)
		return
	}
	worker = newPodWorker(p.runtimeDeps, pod)
	p.mu.Lock()
	p.workers[pod.UID] = worker
	p.mu.Unlock()
	p.running.Go(func() {
		worker.run(ctx)
		close(worker.ended)
		p.forget(worker)
	})
}

// remove takes notice that a pod's object is gone.
func (p *pods) remove(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	worker := p.workers[pod.UID]
	p.mu.Unlock()
	if worker != nil {
		worker.removed()
		p.forget(worker)
	}
}

// forget drops a pod once its worker has ended and its object is gone, whichever comes
// last. As long as there is an object, another event for it must not start the pod again.
func (p *pods) forget(worker *podWorker) {
	select {
	case <-worker.ended:
	default:
		return
	}
	if !worker.isGone() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.workers, worker.uid)
}

// find is the worker of a pod by its name; of two, the one that is not leaving.
func (p *pods) find(namespace, name string) *podWorker {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found *podWorker
	for _, worker := range p.workers {
		pod := worker.object()
		if pod.Namespace == namespace && pod.Name == name && (found == nil || pod.DeletionTimestamp == nil) {
			found = worker
		}
	}
	return found
}

// endForgotten ends the containers of pods whose objects were deleted while no agent
// ran. Their volumes may go only afterwards. It fails if something of them may run.
func (p *pods) endForgotten(ctx context.Context) error {
	entries, err := os.ReadDir(podsDir(p.config))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever started
	}
	if err != nil {
		return fmt.Errorf("look for containers of an earlier agent: %w", err)
	}
	var ending errgroup.Group
	for _, entry := range entries {
		uid := types.UID(entry.Name())
		p.mu.Lock()
		known := p.workers[uid] != nil
		p.mu.Unlock()
		if !known {
			ending.Go(func() error { return p.endContainers(ctx, uid) })
		}
	}
	return ending.Wait()
}

func (p *pods) endContainers(ctx context.Context, uid types.UID) error {
	dirs, err := filepath.Glob(filepath.Join(podsDir(p.config), string(uid), "c", "*", "*"))
	if err != nil {
		return fmt.Errorf("look for containers of pod %s: %w", uid, err)
	}
	for _, dir := range dirs {
		c, found, err := adoptContainer(dir)
		if err != nil {
			return fmt.Errorf("look for a container of pod %s: %w", uid, err)
		}
		if !found {
			continue
		}
		c.terminate()
		select {
		case <-c.done:
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(forcedGrace):
			c.kill()
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.volumes.RemovePod(uid)
	if err := os.RemoveAll(filepath.Join(podsDir(p.config), string(uid))); err != nil {
		klog.FromContext(ctx).Error(err, "directory of a pod that is gone stays", "uid", uid)
	}
	return nil
}
