package attachdetach

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// eventSink sends events to the API server, in the background: no volume waits for
// one. Events that repeat are joined and a flood of them is cut, as upstream does.
type eventSink struct {
	broadcaster record.EventBroadcaster
	client      typedcorev1.EventsGetter
}

func newEventSink(c typedcorev1.EventsGetter) *eventSink {
	return &eventSink{broadcaster: record.NewBroadcaster(), client: c}
}

func (s *eventSink) recorder(scheme *runtime.Scheme) record.EventRecorder {
	return s.broadcaster.NewRecorder(scheme, corev1.EventSource{Component: EventComponent})
}

// Start sends until the context ends.
func (s *eventSink) Start(ctx context.Context) error {
	watch := s.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: s.client.Events("")})
	<-ctx.Done()
	watch.Stop()
	s.broadcaster.Shutdown()
	return nil
}
