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

// Name is the controller's name in logs, metrics and the user agent.
const Name = "attachdetach"

// EventComponent is the source of its events.
const EventComponent = kube.EventComponent

const (
	// workers is how many volumes are worked on at once. A worker mostly waits for
	// the API server, to which one connection carries 100 requests at once.
	workers = 96
	// turnLimit is how often one volume is decided on in one go. Each answer of the
	// API server is decided on once; a volume that needs more is being fought over.
	turnLimit = 6
	// Back-off of a volume whose step failed at the API server. Nothing else waits.
	firstRetry, lastRetry = 5 * time.Millisecond, 10 * time.Second
)

// Options are what an operator may choose.
type Options struct {
	// Policy names the cases in which a volume that may be in use is detached.
	Policy attachment.Policy
	// Metrics counts and measures; nil counts nothing.
	Metrics *telemetry.Controller
	// WarnOfRivals only warns of another attach/detach controller. By default the
	// controller halts: it writes nothing from then on.
	WarnOfRivals bool
	// Settle is how long after the start writes of the controller that led before may
	// still appear; 0 for a minute.
	Settle time.Duration
	// MayLead, if set, is asked after the lease was won and before the first write. A
	// refusal ends the process; an error, which is no knowledge, is asked again.
	MayLead func(ctx context.Context) (refusal, err error)
	// Clock is the API server's time, kept with the answers to the manager's client. Nil
	// is the process's own clock.
	Clock Clock
}

// Controller attaches and detaches volumes.
type Controller struct {
	client    client.Client
	live      client.Reader // reads past the caches, at quorum
	state     *clusterState
	reporter  *reporter
	announcer *announcer
	policy    attachment.Policy
	sources   []source.TypedSource[key]
	refusals  workqueue.TypedRateLimiter[key]
	metrics   *telemetry.Controller
	clock     Clock
	// stepsAtOnce bounds the nodes that one decision is carried out for at once.
	stepsAtOnce int
	rivals      *rivals
	mayLead     func(ctx context.Context) (refusal, err error)
	// worksOn, if set, is told when a volume is taken up (1) and let be (-1).
	worksOn func(volumes int)

	// ready is closed when the caches have reached what the leader before wrote.
	ready chan struct{}
	// sinceAttachments and sinceNodes are the versions that were current when we began
	// to lead: what the leader before sent is bound to these or older ones. They are set
	// before ready is closed.
	sinceAttachments, sinceNodes string

	mu sync.Mutex
	// attempted holds, by name, the attachments whose create went without an answer.
	attempted map[key]map[string]attempt

	stragglers *stragglers
}

// Setup adds the controller to the manager.
func Setup(ctx context.Context, mgr manager.Manager, o Options) error {
	clients, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
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
	c.worksOn = events.worksOn
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
		NewQueue:                newQueue,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry),
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
	return nil
}

// Lead lets the workers begin once the caches show what the previous leader did.
func (c *Controller) Lead(ctx context.Context) error {
	// The previous leader may be gone because the API server is: it gets time.
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		refusal, err := c.mayLead(ctx)
		if refusal != nil {
			return fmt.Errorf("refuse to lead: %w", refusal)
		}
		if err == nil {
			err = c.catchUp(ctx)
		}
		if err == nil {
			c.state.adopt()
			c.rivals.begin(c.sinceAttachments, c.sinceNodes)
			c.metrics.CountVolumes(c.state.census)
			if clock, ok := c.clock.(serverClock); ok {
				clock.Lead() // the reads of catchUp have set it
			}
			close(c.ready)
			return nil
		}
		log.FromContext(ctx).Error(err, "Not acting yet: cannot catch up with the previous leader", "retry", retry)
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return nil
		}
	}
}

// informer is the cache of a kind.
func (c *Controller) informer(kind string) toolscache.SharedIndexInformer {
	for k, informer := range c.state.informers {
		if k.Kind == kind {
			return informer
		}
	}
	panic("attachdetach: nothing watches " + kind) // programmer error
}

// deleteMayBeUnderway tells whether somebody may have sent a delete of this version
// that is still on its way: a leader before us, or we ourselves.
func (c *Controller) deleteMayBeUnderway(va *storagev1.VolumeAttachment) bool {
	select {
	case <-c.ready: // then sinceAttachments is set
	default:
		return true
	}
	return !after(va.ResourceVersion, c.sinceAttachments) || c.state.deletes.has(va.UID, va.ResourceVersion)
}

// writeMayBeUnderway tells whether somebody may have sent a report bound to this
// version of the Node that is still on its way.
func (c *Controller) writeMayBeUnderway(node *corev1.Node) bool {
	return !after(node.ResourceVersion, c.sinceNodes) || c.state.reports.has(node.Name, node.ResourceVersion)
}

// after tells whether a version is surely newer than another.
func after(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order > 0
}
