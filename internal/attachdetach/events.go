package attachdetach

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	eventutil "k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
)

const (
	// eventPatience is how long an event that tells of no trouble waits at most for
	// volumes that are worked on: in a burst each takes from the API server what an
	// attach needs.
	eventPatience = 30 * time.Second
	// mostEvents wait at once; more are dropped. (client-go's broadcaster alone drops
	// after 1000.)
	mostEvents = 20000
)

// eventRetry is how often, and after which pauses, an event without an answer is sent
// again.
var eventRetry = wait.Backoff{Steps: 6, Duration: 500 * time.Millisecond, Factor: 3, Jitter: 0.5}

// eventSink sends events to the API server, in the background and one at a time: no
// volume waits for one. Events that repeat are joined and a flood of them is cut, as
// upstream does. Warnings go first, and the rest when no volume is worked on.
type eventSink struct {
	broadcaster record.EventBroadcaster
	sink        record.EventSink
	correlator  *record.EventCorrelator
	// changed holds one when there may be something to send.
	changed chan struct{}

	mu       sync.Mutex
	inHand   int // volumes
	warnings []lateEvent
	others   []lateEvent
}

// lateEvent is an event that waits to be sent.
type lateEvent struct {
	*corev1.Event

	since time.Time
}

func newEventSink(c typedcorev1.EventsGetter) *eventSink {
	return &eventSink{
		broadcaster: record.NewBroadcaster(),
		sink:        &typedcorev1.EventSinkImpl{Interface: c.Events("")},
		correlator:  record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		changed:     make(chan struct{}, 1),
	}
}

func (s *eventSink) recorder(scheme *runtime.Scheme) record.EventRecorder {
	return s.broadcaster.NewRecorder(scheme, corev1.EventSource{Component: EventComponent})
}

// Start sends until the context ends.
func (s *eventSink) Start(ctx context.Context) error {
	watch := s.broadcaster.StartEventWatcher(func(e *corev1.Event) {
		if !s.add(e) {
			log.FromContext(ctx).Info("Dropping event, too many are waiting to be sent", "object", klog.KRef(e.InvolvedObject.Namespace, e.InvolvedObject.Name), "reason", e.Reason)
		}
	})
	defer s.broadcaster.Shutdown()
	defer watch.Stop()
	for {
		e, ok := s.next(ctx)
		if !ok {
			return nil
		}
		if err := s.send(ctx, e); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Failed to send event", "object", klog.KRef(e.InvolvedObject.Namespace, e.InvolvedObject.Name), "reason", e.Reason)
		}
	}
}

// worksOn is told when a volume is taken up, with 1, and when it is let be, with -1.
func (s *eventSink) worksOn(volumes int) {
	s.mu.Lock()
	s.inHand += volumes
	idle := s.inHand == 0 && len(s.others) > 0
	s.mu.Unlock()
	if idle {
		s.signal()
	}
}

func (s *eventSink) add(e *corev1.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.warnings)+len(s.others) >= mostEvents {
		return false
	}
	late := lateEvent{Event: e, since: time.Now()}
	if e.Type == corev1.EventTypeWarning {
		s.warnings = append(s.warnings, late)
	} else {
		s.others = append(s.others, late)
	}
	s.signal()
	return true
}

func (s *eventSink) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// next waits for the event to send next.
func (s *eventSink) next(ctx context.Context) (*corev1.Event, bool) {
	for {
		e, again := s.pick(time.Now())
		if e != nil {
			return e, true
		}
		timer := time.NewTimer(again)
		select {
		case <-s.changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, false
		}
		timer.Stop()
	}
}

// pick takes the event to send now, or tells when to look again if nothing changes.
func (s *eventSink) pick(now time.Time) (e *corev1.Event, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	take := func(from *[]lateEvent) *corev1.Event {
		first := (*from)[0]
		*from = (*from)[1:]
		return first.Event
	}
	switch {
	case len(s.warnings) > 0:
		return take(&s.warnings), 0
	case len(s.others) == 0:
		return nil, eventPatience
	}
	left := eventPatience - now.Sub(s.others[0].since)
	if s.inHand == 0 || left <= 0 {
		return take(&s.others), 0
	}
	return nil, left
}

// send writes one event, unless it is one too many of its kind.
func (s *eventSink) send(ctx context.Context, e *corev1.Event) error {
	result, err := s.correlator.EventCorrelate(e.DeepCopy())
	if err != nil || result.Skip {
		return err
	}
	for pauses := eventRetry; ; {
		written, err := s.write(result)
		if err == nil {
			s.correlator.UpdateState(written)
			return nil
		}
		if kube.IsAnswer(err) || pauses.Steps == 0 {
			return err
		}
		timer := time.NewTimer(pauses.Step())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

func (s *eventSink) write(result *record.EventCorrelateResult) (*corev1.Event, error) {
	if result.Event.Count > 1 {
		written, err := s.sink.Patch(result.Event, result.Patch)
		if !eventutil.IsKeyNotFoundError(err) { // as one that the API server has forgotten
			return written, err
		}
	}
	result.Event.ResourceVersion = ""
	return s.sink.Create(result.Event)
}
