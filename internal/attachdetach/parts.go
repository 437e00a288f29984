package attachdetach

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/fencing"
)

// Parts are the dependencies of a Controller: the manager's, or those of the simulation.
type Parts struct {
	// Cache holds the watched objects. Its informers must support indexes.
	Cache  cache.Cache
	Client client.Client
	// Live reads from the API server, at quorum.
	Live     client.Reader
	Recorder record.EventRecorder
	// Clock follows the API server's time; nil is the local clock.
	Clock Clock
}

// Clock is the time for timeouts that outlive the process.
type Clock interface{ Now() time.Time }

// serverClock is a Clock that follows the API server (kube.ServerClock).
type serverClock interface {
	Clock
	// Newest may be later than Now. Written timestamps use it.
	Newest() time.Time
	// Lead is called before the first decision.
	Lead()
}

type ownClock struct{}

func (ownClock) Now() time.Time { return time.Now() }

// Proofs knows which boots of nodes have ended, and which run.
type Proofs interface {
	// Of returns the proofs about the boots of a node.
	Of(node string) []fencing.Proof
	// OnNew has a function called with the name of each node that a new proof is about. The function must return at once.
	OnNew(func(node string))
	// Lives returns which boots of a node are known to run. shown is the boot that the Node shows, with nothing but a name if there is no Node.
	Lives(shown fencing.Boot) []fencing.Life
}

type noProofs struct{}

func (noProofs) Of(string) []fencing.Proof { return nil }
func (noProofs) OnNew(func(string))        {}

func (noProofs) Lives(fencing.Boot) []fencing.Life { return nil }

// lives returns which boots of a node are known to run. A Node that is Ready needs no such knowledge: no policy forces a detach from it.
func (w *clusterState) lives(name string, n attachment.Node) []fencing.Life {
	if n.Healthy == attachment.Yes {
		return nil
	}
	shown := fencing.Boot{Node: name}
	if n.Exists == attachment.Yes {
		shown.NodeUID, shown.ID, shown.Machine = n.Machine.NodeUID, n.Machine.BootID, fencing.MachineID(n.Machine.SystemUUID)
	}
	return w.proofs.Lives(shown)
}

// proven enqueues the volumes of a node when its boot is proven to have ended.
func (w *clusterState) proven(_ context.Context, queue workqueue.TypedRateLimitingInterface[key]) error {
	w.proofs.OnNew(func(node string) {
		for _, k := range w.keysOfNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) {
			queue.Add(k)
		}
	})
	return nil
}

// New returns a controller. The caller starts Sources, calls Lead when it leads, and calls Reconcile for each enqueued
// volume.
func New(ctx context.Context, p Parts, o Options) (*Controller, error) {
	if p.Clock == nil {
		p.Clock = ownClock{}
	}
	w, err := newClusterState(ctx, p.Cache, p.Clock)
	if err != nil {
		return nil, fmt.Errorf("set up the attach/detach controller: %w", err)
	}
	if o.Proofs != nil {
		w.proofs = o.Proofs
	}
	r := rivalsFor(ctx, w, p, o)
	p.Client = haltingClient{p.Client, r}
	if o.MayLead == nil {
		o.MayLead = func(context.Context) (refusal, err error) { return nil, nil }
	}
	c := assemble(w, r, p, o)
	c.sources = append(w.sources(p.Cache, c), source.TypedFunc[key](c.slowNodes.Start), source.TypedFunc[key](w.proven))
	return c, nil
}

func assemble(w *clusterState, r *rivals, p Parts, o Options) *Controller {
	return &Controller{
		client:         p.Client,
		live:           p.Live,
		state:          w,
		reporter:       newReporter(p.Client, p.Live, w),
		eventEmitter:   newEventEmitter(p.Recorder),
		policy:         o.Policy,
		metrics:        o.Metrics,
		traces:         o.Traces,
		rivals:         r,
		records:        records{client: p.Client, live: p.Live, clock: w.clock, key: o.Records},
		mayLead:        o.MayLead,
		ready:          make(chan struct{}),
		pendingCreates: map[key]map[string]pendingCreate{},
		slowNodes:      &slowNodes{nodes: map[key]map[attachment.NodeName]bool{}, answers: map[key]map[attachment.NodeName]string{}},
		clock:          w.clock,

		stepsAtOnce: workers,
		refusals:    workqueue.NewTypedItemExponentialFailureRateLimiter[key](minRefusalRetry, maxRefusalRetry),
	}
}

// Sources map changes in the caches to the volumes that they affect.
func (c *Controller) Sources() []source.TypedSource[key] { return c.sources }

// DecisionFor returns the decision on the volume at that time, without acting on it. The simulation uses it to check
// that each event that changes a decision enqueues the volume.
func (c *Controller) DecisionFor(k attachment.VolumeKey, now time.Time) attachment.Decision {
	s := c.state.snapshotOf(k, &nodeReads{}, c)
	return attachment.Decide(now, s.want, s.seen, c.policy)
}

// Unanswered reports whether steps of the volume are still in flight. The volume is enqueued when they end.
func (c *Controller) Unanswered(k attachment.VolumeKey) bool {
	c.slowNodes.mu.Lock()
	defer c.slowNodes.mu.Unlock()
	return len(c.slowNodes.nodes[k]) > 0
}
