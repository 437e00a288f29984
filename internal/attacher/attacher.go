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

// Config configures an Attacher. Durations and counts correspond to csi-attacher's flags of the same names.
type Config struct {
	Client     kubernetes.Interface // must not limit its rate: the Attacher does
	QPS        float32              // average requests per second; 0 or less means no limit
	Burst      int                  // burst allowed on top of QPS
	Driver     string               // the CSI driver's name
	Controller *csi.Controller      // without PUBLISH_UNPUBLISH_VOLUME, every attachment is marked as attached

	Timeout       time.Duration // of one CSI call; 15 s by default
	RetryStart    time.Duration // back-off after the first failed call; 1 s by default
	RetryMax      time.Duration // longest back-off; 5 min by default
	Resync        time.Duration // resync period of the informers; 10 min by default
	WorkerThreads int           // maximum number of CSI calls in flight; 256 by default
	DefaultFSType string        // for volumes without a filesystem type
	// ReconcileSync is the pause between two comparisons with ListVolumes, 1 min by default; 0 or less disables them.
	// MaxEntries is the page size; 0 leaves it to the driver.
	ReconcileSync    time.Duration
	MaxEntries       int
	ReconcileMetrics *telemetry.Reconcile // may be nil
	Metrics          *telemetry.Attacher  // may be nil
	Traces           *telemetry.Traces    // may be nil

	// EarlyOKFor is how long a publish that had no final answer may take effect although the driver has answered OK to an unpublish since;
	// 0 for a driver that does not answer too early.
	EarlyOKFor time.Duration

	DrainTimeout time.Duration // how long a shutdown waits for calls in flight

	// AnnotateCalls has calls that take long, and what a list has at another node too, written on VolumeAttachments (ADR 32), and read again by the next
	// process. Without it neither is written or read.
	AnnotateCalls bool
}

const (
	// writeTimeout bounds one request to the API server.
	writeTimeout = 10 * time.Second
	// maxDecisions bounds how often a key is decided on before other keys are processed. An attach takes three
	// decisions.
	maxDecisions = 8
	// writeRetryStart and writeRetryMax bound the back-off after a failed API request.
	writeRetryStart = 20 * time.Millisecond
	writeRetryMax   = 5 * time.Second
	// volumeWorkers is the number of workers that remove finalizers from PersistentVolumes, with one request each.
	volumeWorkers = 10
)

// Attacher runs the attachments of one CSI driver.
type Attacher struct {
	traces        *telemetry.Traces
	client        kubernetes.Interface
	limit         flowcontrol.RateLimiter // of API requests; nil for no limit
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
	throttle       *throttle
	deciding       sync.Map // publication.Keys that a worker decides on now
	absence        absence
	longCalls      pendingCalls
	annotates      bool
	pendingSecrets pendingSecrets
	turns          turns // of the workers of queue
	queue          workqueue.TypedRateLimitingInterface[publication.Key]
	volumes        workqueue.TypedRateLimitingInterface[string]

	regularCalls, suspectCalls *callQueue

	callsInFlightAtExit atomic.Bool // Run returned while CSI calls were in flight

	newBoot           chan struct{} // receives after a VolumeAttachment got another boot ID
	attachmentHandled chan struct{} // receives after each event of a VolumeAttachment was handled

	running  atomic.Bool // informer events are enqueued
	draining atomic.Bool // no new call is started
}

// New returns an Attacher. It reads and writes nothing before Warm and Run.
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
		throttle: newThrottle(c.RetryStart), traces: c.Traces, turns: newTurns(), attachmentHandled: make(chan struct{}, 1),
		newBoot:   make(chan struct{}, 1),
		annotates: c.AnnotateCalls,
		longCalls: newPendingCalls(),
	}
	a.calls.doubtful = c.EarlyOKFor
	watched.keepTraceparents = c.Traces != nil
	// The queue names are csi-attacher's, so that dashboards keep working.
	a.queue = newQueue("csi-attacher-va", workqueue.Queue[publication.Key](newFairQueue(a.onlyDetaches)))
	a.volumes = newQueue("csi-attacher-pv", workqueue.DefaultQueue[string]())
	a.regularCalls, a.suspectCalls = newCallQueues(c.WorkerThreads, a.onlyDetaches)
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

// Warm starts the informers, so that a standby can take over at once. They stop when ctx is done.
func (a *Attacher) Warm(ctx context.Context) { a.objects.factory.StartWithContext(ctx) }

// cachesSynced returns an error that names the caches that are not synced yet.
func (a *Attacher) cachesSynced() error {
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

// Run attaches and detaches until ctx is done. It then waits up to the drain timeout for the calls in flight and
// records their results. The context of Warm must outlive that of Run.
func (a *Attacher) Run(ctx context.Context) error {
	logger := log.FromContext(ctx).WithValues("driver", a.driver)
	// Running work and calls outlive ctx by the drain timeout.
	work, stop := context.WithCancel(log.IntoContext(context.WithoutCancel(ctx), logger))
	defer stop()
	defer a.shutDown() // on every return: the queues have goroutines
	if !cache.WaitForCacheSync(ctx.Done(), a.objects.synced()...) {
		return nil
	}
	if err := a.catchUp(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // shut down before the start
		}
		return fmt.Errorf("catch up with the previous leader: %w", err)
	}
	logger.Info("Started attaching and detaching volumes", "finalizer", a.finalizer, "canAttach", a.controller.Capabilities().Attach)
	a.metrics.CountCalls(a.flow)
	a.calls.started = time.Now()
	a.running.Store(true)
	a.enqueueAll()

	var calling, working sync.WaitGroup
	for _, queue := range a.callQueues() {
		for range queue.workers {
			calling.Go(func() { a.workCalls(work, queue) })
		}
	}
	for range a.workers {
		working.Go(func() { a.work(work, a.queue) })
	}
	for range volumeWorkers {
		working.Go(func() { workVolumes(work, a) })
	}
	working.Go(func() { a.noteCalls(log.IntoContext(ctx, logger)) })
	a.compareWithDriver(log.IntoContext(ctx, logger))
	<-ctx.Done()
	a.drain(logger, &calling, &working)
	stop()
	calling.Wait()
	working.Wait()
	return nil
}

// enqueueAll enqueues all cached objects that are not in their desired state.
func (a *Attacher) enqueueAll() {
	var keys []publication.Key
	for _, item := range a.objects.attachmentInformer.GetStore().List() {
		if va, ok := item.(*storagev1.VolumeAttachment); ok && va.Spec.Attacher == a.driver {
			a.objects.trackOrphan(va)
			keys = append(keys, a.unsettledKeys(va)...)
		}
	}
	a.enqueue(keys)
	for _, item := range a.objects.volumeInformer.GetStore().List() {
		if pv, ok := item.(*corev1.PersistentVolume); ok && a.mayRelease(pv) {
			a.volumes.Add(pv.Name)
		}
	}
}

func (a *Attacher) shutDown() {
	a.regularCalls.ShutDown()
	a.suspectCalls.ShutDown()
	a.volumes.ShutDown()
	a.queue.ShutDown()
}

// drain starts no new calls, waits up to the drain timeout for those in flight, and records their results.
func (a *Attacher) drain(logger logr.Logger, calling, working *sync.WaitGroup) {
	a.draining.Store(true)
	a.volumes.ShutDown()
	a.regularCalls.ShutDown()
	a.suspectCalls.ShutDown()
	// Logged only now, so that what follows the line finds that nothing more begins.
	logger.Info("Shutting down, waiting for calls in flight", "timeout", a.drainTimeout)
	ended, called := make(chan struct{}), make(chan struct{})
	go func() {
		calling.Wait() // each call has enqueued its key
		close(called)
		a.queue.ShutDown()
		working.Wait() // the workers end when the queue is empty
		close(ended)
	}()
	timer := time.NewTimer(a.drainTimeout)
	defer timer.Stop()
	select {
	case <-ended:
		logger.Info("Shut down after the results of all calls were recorded")
	case <-timer.C:
		select {
		case <-called:
			logger.Info("Shut down before all results were recorded, leaving their calls to the next leader")
		default:
			a.callsInFlightAtExit.Store(true)
			logger.Info("Shut down with calls in flight, leaving them to the next leader")
		}
		a.queue.ShutDown()
	}
}

// jitter spreads the delays of a rate limiter by key.
type jitter[T comparable] struct{ workqueue.TypedRateLimiter[T] }

// When implements workqueue.TypedRateLimiter.
func (j jitter[T]) When(item T) time.Duration {
	delay := j.TypedRateLimiter.When(item)
	return publication.Spread(delay, fmt.Sprint(item, j.NumRequeues(item)))
}
