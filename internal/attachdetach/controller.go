package attachdetach

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// Name is the name of the controller in logs, metrics and the user agent.
const Name = "attachdetach"

// EventComponent is the source of emitted events.
const EventComponent = kube.EventComponent

const (
	// workers is the number of volumes that are processed at once. Workers mostly wait for the API server; one HTTP/2
	// connection carries 100 requests.
	workers = 96
	// maxDecisions bounds how often Reconcile decides on a volume. A volume that needs more decisions is being changed
	// by another client.
	maxDecisions = 6
	// Back-off of a volume after a failed API request.
	firstRetry, maxRetry = 5 * time.Millisecond, 10 * time.Second
)

// Options configure the controller.
type Options struct {
	// Policy defines when a volume that may be in use is detached.
	Policy attachment.Policy
	// Metrics may be nil.
	Metrics *telemetry.Controller
	// Traces may be nil.
	Traces *telemetry.Traces
	// WarnOfRivals only warns of another attach/detach controller. By default the controller halts: it stops writing.
	WarnOfRivals bool
	// Settle is how long after the start writes of the previous leader may still appear; 0 means one minute.
	Settle time.Duration
	// MayLead, if set, is called after winning the lease and before the first write. A refusal ends the process; after
	// an error it is called again.
	MayLead func(ctx context.Context) (refusal, err error)
	// Clock follows the API server's time, which the manager's client updates. Nil is the local clock.
	Clock Clock
	// Proofs are those of recovery in the same process; nil if there is none.
	Proofs Proofs
	// Records is the Lease by which leaders know that all attachments are recorded. Without a name, each leader takes over what Nodes report.
	Records client.ObjectKey
}

// Controller attaches and detaches volumes.
type Controller struct {
	client       client.Client
	live         client.Reader // reads from the API server, at quorum
	state        *clusterState
	reporter     *reporter
	eventEmitter *eventEmitter
	policy       attachment.Policy
	sources      []source.TypedSource[key]
	refusals     workqueue.TypedRateLimiter[key]
	metrics      *telemetry.Controller
	traces       *telemetry.Traces
	clock        Clock
	// stepsAtOnce bounds the nodes that one decision is carried out on concurrently.
	stepsAtOnce int
	rivals      *rivals
	records     records
	mayLead     func(ctx context.Context) (refusal, err error)
	// volumeActive, if set, is called when a worker starts (1) and stops (-1) processing a volume.
	volumeActive func(volumes int)

	// ready is closed when the caches include the previous leader's writes.
	ready chan struct{}
	// sinceAttachments and sinceNodes are the resource versions at the start of leading: writes of the previous leader
	// are bound to these or older ones. They are set before ready is closed.
	sinceAttachments, sinceNodes string

	mu sync.Mutex
	// pendingCreates holds creates without a response, by volume and attachment name.
	pendingCreates map[key]map[string]pendingCreate

	slowNodes *slowNodes
}

// Setup adds the controller to the manager.
func Setup(ctx context.Context, mgr manager.Manager, o Options) error {
	clients, err := kubernetes.NewForConfigAndClient(kube.WithProtobuf(mgr.GetConfig()), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("create the client for events: %w", err)
	}
	events := newEventSink(clients.CoreV1())
	c, err := New(ctx, Parts{
		Cache: mgr.GetCache(), Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: events.recorder(mgr.GetScheme()),
		Clock: o.Clock,
	}, o)
	if err != nil {
		return err
	}
	c.volumeActive = events.volumeActive
	if err := c.rivals.watch(c.informer("Node"), c.informer("VolumeAttachment")); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(c.rivals.follow(clients.CoreV1()))); err != nil {
		return fmt.Errorf("add the watch for other controllers' events: %w", err)
	}
	if err := mgr.AddReadyzCheck(Name, c.readyz(mgr.Elected())); err != nil {
		return fmt.Errorf("add the readiness check: %w", err)
	}
	yes := true
	queue, err := controller.NewTyped(Name, mgr, controller.TypedOptions[key]{
		Reconciler:              c,
		MaxConcurrentReconciles: workers,
		NewQueue:                kube.NewQueue[key],
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, maxRetry),
		LogConstructor:          logConstructor(mgr.GetLogger()),
		EnableWarmup:            &yes, // a standby watches too, and takes over at once
		SkipNameValidation:      &yes, // tests run several in one process
	})
	if err != nil {
		return fmt.Errorf("create the queue of volumes: %w", err)
	}
	for _, s := range c.Sources() {
		if err := queue.Watch(s); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	if err := mgr.Add(events); err != nil {
		return fmt.Errorf("add the event sink: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(c.Lead)); err != nil {
		return fmt.Errorf("add the barrier: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(c.keepRecords)); err != nil {
		return fmt.Errorf("add the records: %w", err)
	}
	return nil
}

// Lead lets the workers start when the caches include the writes of the previous leader.
func (c *Controller) Lead(ctx context.Context) error {
	// Retry: the previous leader may have stopped because the API server is down.
	for retry := firstRetry; ; retry = min(2*retry, maxRetry) {
		refusal, err := c.mayLead(ctx)
		if refusal != nil {
			return fmt.Errorf("refuse to lead: %w", refusal)
		}
		if err == nil {
			err = c.catchUp(ctx)
		}
		if err == nil {
			err = c.takeOver(ctx)
		}
		if err == nil {
			c.rivals.begin(c.sinceAttachments, c.sinceNodes)
			c.metrics.CountVolumes(c.state.census)
			if clock, ok := c.clock.(serverClock); ok {
				clock.Lead() // catchUp has set it
			}
			close(c.ready)
			return nil
		}
		log.FromContext(ctx).Error(err, "Failed to catch up with the previous leader, retrying", "retryAfter", retry)
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return nil
		}
	}
}

// informer returns the informer of a kind.
func (c *Controller) informer(kind string) toolscache.SharedIndexInformer {
	for k, informer := range c.state.informers {
		if k.Kind == kind {
			return informer
		}
	}
	panic("attachdetach: nothing watches " + kind) // programmer error
}

// deleteMayBeUnderway reports whether a delete of this resource version may be in flight, sent by a previous leader or
// by this process.
func (c *Controller) deleteMayBeUnderway(va *storagev1.VolumeAttachment) bool {
	select {
	case <-c.ready: // then sinceAttachments is set
	default:
		return true
	}
	return !after(va.ResourceVersion, c.sinceAttachments) || c.state.deletes.has(va.UID, va.ResourceVersion)
}

// writeMayBeUnderway reports whether a report bound to this resource version of the Node may be in flight.
func (c *Controller) writeMayBeUnderway(node *corev1.Node) bool {
	return !after(node.ResourceVersion, c.sinceNodes) || c.state.reports.has(node.Name, node.ResourceVersion)
}

// after reports whether a resource version is certainly newer than another.
func after(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order > 0
}
