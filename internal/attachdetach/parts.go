package attachdetach

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"belay.dev/belay/internal/attachment"
)

// Parts are what a Controller observes and acts through. In a process they are the
// manager's; the simulation has its own.
type Parts struct {
	// Cache holds the watched objects. Its informers must have indexes.
	Cache cache.Cache
	// Client writes.
	Client client.Client
	// Live reads past the caches, at quorum.
	Live client.Reader
	// Recorder takes the events for pods.
	Recorder record.EventRecorder
	// Clock is the API server's time; nil is the process's own.
	Clock Clock
}

// Clock tells the time by which waits are counted that outlive the process.
type Clock interface{ Now() time.Time }

// serverClock is a Clock that follows a server's (kube.ServerClock).
type serverClock interface {
	Clock
	// Newest may be later than Now: what is written down is dated with it.
	Newest() time.Time
	// Lead is called before anything is judged by the clock.
	Lead()
}

type ownClock struct{}

func (ownClock) Now() time.Time { return time.Now() }

// New makes a controller that acts through the parts. Whoever makes it starts Sources,
// calls Lead once it leads, and Reconcile for each volume that the sources name.
func New(ctx context.Context, p Parts, o Options) (*Controller, error) {
	if p.Clock == nil {
		p.Clock = ownClock{}
	}
	w, err := newClusterState(ctx, p.Cache, p.Clock)
	if err != nil {
		return nil, fmt.Errorf("set up the attach/detach controller: %w", err)
	}
	r := rivalsFor(ctx, w, p, o)
	p.Client = gated{p.Client, r}
	if o.MayLead == nil {
		o.MayLead = func(context.Context) (refusal, err error) { return nil, nil }
	}
	c := assemble(w, r, p, o)
	c.sources = append(w.sources(p.Cache, c), source.TypedFunc[key](c.stragglers.Start))
	return c, nil
}

// assemble makes a controller of a world and the parts around it.
func assemble(w *clusterState, r *rivals, p Parts, o Options) *Controller {
	return &Controller{
		client:     p.Client,
		live:       p.Live,
		state:      w,
		reporter:   newReporter(p.Client, p.Live, w),
		announcer:  newAnnouncer(p.Recorder),
		policy:     o.Policy,
		metrics:    o.Metrics,
		rivals:     r,
		mayLead:    o.MayLead,
		ready:      make(chan struct{}),
		attempted:  map[key]map[string]attempt{},
		stragglers: &stragglers{nodes: map[key]map[attachment.NodeName]bool{}, answers: map[key]map[attachment.NodeName]string{}},
		clock:      w.clock,

		stepsAtOnce: workers,
		refusals:    newRefusals(),
	}
}

// Sources name the volumes that each change in the caches may matter to.
func (c *Controller) Sources() []source.TypedSource[key] { return c.sources }
