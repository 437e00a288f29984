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
	// maxEventDelay bounds how long a normal event waits while volumes are processed: in a burst each event competes
	// with attaches for the API server.
	maxEventDelay = 30 * time.Second
	// maxQueuedEvents bounds the queue; further events are dropped. (client-go's broadcaster drops after 1000.)
	maxQueuedEvents = 20000
)

// eventRetry is the back-off for an event without a response.
var eventRetry = wait.Backoff{Steps: 6, Duration: 500 * time.Millisecond, Factor: 3, Jitter: 0.5}

// eventSink sends events one at a time in the background. Repeated events are aggregated and rate-limited, as upstream.
// Warnings are sent first; normal events are sent when no volume is being processed.
type eventSink struct {
	broadcaster record.EventBroadcaster
	sink        record.EventSink
	correlator  *record.EventCorrelator
	// changed signals that there may be an event to send.
	changed chan struct{}

	mu            sync.Mutex
	activeVolumes int // volumes that are being processed
	warnings      []queuedEvent
	normal        []queuedEvent
}

// queuedEvent is an event in the queue.
type queuedEvent struct {
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

// Start sends events until ctx is done.
func (s *eventSink) Start(ctx context.Context) error {
	watch := s.broadcaster.StartEventWatcher(func(e *corev1.Event) {
		if !s.add(e) {
			log.FromContext(ctx).Error(nil, "Dropped an event because the queue is full", "object", klog.KRef(e.InvolvedObject.Namespace, e.InvolvedObject.Name), "reason", e.Reason)
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

// volumeActive is called with 1 when a worker starts to process a volume, and with -1 when it stops.
func (s *eventSink) volumeActive(volumes int) {
	s.mu.Lock()
	s.activeVolumes += volumes
	idle := s.activeVolumes == 0 && len(s.normal) > 0
	s.mu.Unlock()
	if idle {
		s.signal()
	}
}

func (s *eventSink) add(e *corev1.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.warnings)+len(s.normal) >= maxQueuedEvents {
		return false
	}
	late := queuedEvent{Event: e, since: time.Now()}
	if e.Type == corev1.EventTypeWarning {
		s.warnings = append(s.warnings, late)
	} else {
		s.normal = append(s.normal, late)
	}
	s.signal()
	return true
}

func (s *eventSink) signal() { kube.Signal(s.changed) }

// next waits for the next event to send.
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

// pick returns the event to send now, or how long to wait if nothing changes.
func (s *eventSink) pick(now time.Time) (e *corev1.Event, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	take := func(from *[]queuedEvent) *corev1.Event {
		first := (*from)[0]
		*from = (*from)[1:]
		return first.Event
	}
	switch {
	case len(s.warnings) > 0:
		return take(&s.warnings), 0
	case len(s.normal) == 0:
		return nil, maxEventDelay
	}
	left := maxEventDelay - now.Sub(s.normal[0].since)
	if s.activeVolumes == 0 || left <= 0 {
		return take(&s.normal), 0
	}
	return nil, left
}

// send writes one event, unless the correlator suppresses it.
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
		if !eventutil.IsKeyNotFoundError(err) { // the API server has expired it: create it again
			return written, err
		}
	}
	result.Event.ResourceVersion = ""
	return s.sink.Create(result.Event)
}
