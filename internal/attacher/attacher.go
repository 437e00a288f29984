package attacher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// Config is what an Attacher is made of. Durations and counts are csi-attacher's
// flags of the same names.
type Config struct {
	Client     kubernetes.Interface // without a limit of its own
	QPS        float32              // requests a second on average; not above 0 means no limit
	Burst      int                  // requests at once, where QPS sets a limit
	Driver     string               // the CSI driver's name
	Controller *csi.Controller      // a driver that cannot attach gets the trivial treatment

	Timeout       time.Duration // of one call to the driver; 15 s
	RetryStart    time.Duration // back-off after the first failed call; 1 s
	RetryMax      time.Duration // longest back-off; 5 min
	Resync        time.Duration // of the watch caches; 10 min
	WorkerThreads int           // calls in flight at most; 256
	DefaultFSType string        // for volumes that name none
	// ReconcileSync is the pause between two comparisons with the driver's list of
	// volumes, 1 min; not above 0 means never. MaxEntries bounds one page of it; 0
	// leaves that to the driver.
	ReconcileSync    time.Duration
	MaxEntries       int
	ReconcileMetrics *telemetry.Reconcile // may be nil
	Metrics          *telemetry.Attacher  // of waits and calls; may be nil

	DrainTimeout time.Duration // how long calls in flight may take to end at shutdown
}

const (
	// writeTimeout bounds one request to the API server.
	writeTimeout = 10 * time.Second
	// maxTurns bounds how often a key is decided about before others get their
	// turn. A whole attach takes three.
	maxTurns = 8
	// writeRetryStart and writeRetryMax bound the back-off after a failed request
	// to the API server.
	writeRetryStart = 20 * time.Millisecond
	writeRetryMax   = 5 * time.Second
	// volumeWorkers release PersistentVolumes, by one request each.
	volumeWorkers = 10
)

// Attacher runs the attachments of one CSI driver.
type Attacher struct {
	client        kubernetes.Interface
	limit         flowcontrol.RateLimiter // of requests; nil for none
	workers       int
	driver        string
	finalizer     string
	controller    *csi.Controller
	timeout       time.Duration
	drainTimeout  time.Duration
	policy        publication.Policy
	defaultFSType string

	reconcileSync    time.Duration
	maxEntries       int
	reconcileMetrics *telemetry.Reconcile
	metrics          *telemetry.Attacher

	objects        *objects
	calls          *ledger
	holds          *holds
	inHand         sync.Map // the publication.Keys that a worker decides about now
	absence        absence
	pendingSecrets pendingSecrets
	queue          workqueue.TypedRateLimitingInterface[publication.Key]
	volumes        workqueue.TypedRateLimitingInterface[string]

	wellCalls, suspectCalls *callQueue

	callsLeft atomic.Bool // Run has returned while calls to the driver were in flight

	running  atomic.Bool // events are queued
	draining atomic.Bool // nothing new is begun
}

// New prepares an Attacher; nothing is read or written before Warm and Run.
func New(c Config) (*Attacher, error) {
	if c.WorkerThreads < 1 {
		return nil, errors.New("option -worker-threads must be greater than zero")
	}
	watched, err := newObjects(c.Client, c.Driver, c.Resync)
	if err != nil {
		return nil, fmt.Errorf("prepare the watch caches: %w", err)
	}
	a := &Attacher{
		client: c.Client, driver: c.Driver, finalizer: kube.AttacherFinalizer(c.Driver), controller: c.Controller,
		timeout: c.Timeout, drainTimeout: c.DrainTimeout, defaultFSType: c.DefaultFSType,
		policy:        publication.Policy{RetryStart: c.RetryStart, RetryMax: c.RetryMax},
		reconcileSync: c.ReconcileSync, maxEntries: c.MaxEntries, reconcileMetrics: c.ReconcileMetrics, metrics: c.Metrics,
		objects: watched, calls: newLedger(), limit: requestLimit(c.QPS, c.Burst), workers: workersFor(c.QPS),
		holds: newHolds(c.RetryStart),
	}
	// The names are csi-attacher's: dashboards read the metrics by them.
	a.queue = newQueue("csi-attacher-va", workqueue.Queue[publication.Key](newFair(a.onlyDetaches)))
	a.volumes = newQueue("csi-attacher-pv", workqueue.DefaultQueue[string]())
	a.wellCalls, a.suspectCalls = newCallQueues(c.WorkerThreads, a.onlyDetaches)
	return a, a.watch()
}

func newQueue[T comparable](name string, order workqueue.Queue[T]) workqueue.TypedRateLimitingInterface[T] {
	limiter := jitter[T]{workqueue.NewTypedItemExponentialFailureRateLimiter[T](writeRetryStart, writeRetryMax)}
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Name: name, Queue: order})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[T]{
		Name:          name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{Name: name, Queue: queue}),
	})
}

// Warm starts the watch caches, so that a standby has them when it becomes the
// leader. They stop with ctx.
func (a *Attacher) Warm(ctx context.Context) { a.objects.factory.StartWithContext(ctx) }

// warmed tells what keeps a standby from leading at once.
func (a *Attacher) warmed() error {
	var missing []string
	for i, synced := range a.objects.synced() {
		if !synced() {
			missing = append(missing, cached[i])
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the caches are not synced yet: %s", strings.Join(missing, ", "))
	}
	return nil
}

// Run works until ctx ends, then lets the calls in flight end within the drain
// timeout, records their results, and returns. The context of Warm must outlive
// that of Run.
func (a *Attacher) Run(ctx context.Context) error {
	logger := log.FromContext(ctx).WithValues("driver", a.driver)
	// What is done, and the calls in flight, outlive ctx by the drain timeout.
	work, stop := context.WithCancel(log.IntoContext(context.WithoutCancel(ctx), logger))
	defer stop()
	defer a.shutDown() // also when it ends before it began: the queues have goroutines
	if !cache.WaitForCacheSync(ctx.Done(), a.objects.synced()...) {
		return nil
	}
	if err := a.catchUp(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // shut down before it began
		}
		return fmt.Errorf("catch up with the previous leader: %w", err)
	}
	logger.Info("Started attaching and detaching volumes", "finalizer", a.finalizer, "canAttach", a.controller.Capabilities().Attach)
	a.metrics.CountCalls(a.flow)
	a.running.Store(true)
	a.wakeAll()

	var calling, working sync.WaitGroup
	for _, queue := range a.callQueues() {
		for range queue.workers {
			calling.Go(func() { a.workCalls(work, queue) })
		}
	}
	for range a.workers {
		working.Go(func() { a.work(work, a.queue, a.process) })
	}
	for range volumeWorkers {
		working.Go(func() { workVolumes(work, a) })
	}
	a.compareWithDriver(log.IntoContext(ctx, logger))
	<-ctx.Done()
	a.drain(logger, &calling, &working)
	stop()
	calling.Wait()
	working.Wait()
	return nil
}

// wakeAll queues everything that the caches hold and that is not as it shall be.
func (a *Attacher) wakeAll() {
	for _, item := range a.objects.attachmentInformer.GetStore().List() {
		if va, ok := item.(*storagev1.VolumeAttachment); ok && va.Spec.Attacher == a.driver {
			a.objects.noteStray(va)
			a.wakeUnsettled(va)
		}
	}
	for _, item := range a.objects.volumeInformer.GetStore().List() {
		if pv, ok := item.(*corev1.PersistentVolume); ok && a.mayRelease(pv) {
			a.volumes.Add(pv.Name)
		}
	}
}

// shutDown ends the queues.
func (a *Attacher) shutDown() {
	a.wellCalls.ShutDown()
	a.suspectCalls.ShutDown()
	a.volumes.ShutDown()
	a.queue.ShutDown()
}

// drain ends the work: no new calls, the results of those in flight recorded,
// nothing waited for beyond the drain timeout.
func (a *Attacher) drain(logger logr.Logger, calling, working *sync.WaitGroup) {
	logger.Info("Shutting down, waiting for calls in flight", "timeout", a.drainTimeout)
	a.draining.Store(true)
	a.volumes.ShutDown()
	a.wellCalls.ShutDown()
	a.suspectCalls.ShutDown()
	ended, called := make(chan struct{}), make(chan struct{})
	go func() {
		calling.Wait() // each has queued its key by then
		close(called)
		a.queue.ShutDown()
		working.Wait() // they end when all that is queued was worked off
		close(ended)
	}()
	timer := time.NewTimer(a.drainTimeout)
	defer timer.Stop()
	select {
	case <-ended:
		logger.Info("Shut down, the results of all calls are recorded")
	case <-timer.C:
		select {
		case <-called:
			logger.Info("Shut down before all results were recorded, the next leader repeats their calls")
		default:
			a.callsLeft.Store(true)
			logger.Info("Shut down with calls in flight, the next leader repeats them")
		}
		a.queue.ShutDown()
	}
}
