package attachdetach

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// writtenEvents is an API server that stores events, and fails as often as the test asks for.
type writtenEvents struct {
	mu      sync.Mutex
	failing []error
	sent    []string // "create NAME: MESSAGE"
	tries   int
}

func (w *writtenEvents) write(verb string, e *corev1.Event) (*corev1.Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tries++
	if len(w.failing) > 0 {
		err := w.failing[0]
		w.failing = w.failing[1:]
		return nil, err
	}
	w.sent = append(w.sent, fmt.Sprintf("%s %s: %s", verb, e.InvolvedObject.Name, e.Message))
	return e, nil
}

func (w *writtenEvents) Create(e *corev1.Event) (*corev1.Event, error) { return w.write("create", e) }
func (w *writtenEvents) Update(e *corev1.Event) (*corev1.Event, error) { return w.write("update", e) }
func (w *writtenEvents) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return w.write("patch", e)
}

// fail has the next writes fail.
func (w *writtenEvents) fail(with ...error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = with
}

func (w *writtenEvents) got() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent)
}

// sinkInTest runs a sink with a recorder in front of it and an API server behind it.
func sinkInTest(t *testing.T, run func(s *eventSink, recorder record.EventRecorder, w *writtenEvents)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &writtenEvents{}
		s := newEventSink(fake.NewClientset().CoreV1())
		s.sink = w
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.Start(t.Context()) }()
		synctest.Wait()
		run(s, s.recorder(scheme.Scheme), w)
		t.Cleanup(func() { <-ended })
	})
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

// A normal event waits while volumes are being processed, but no longer than the sink's patience; a warning does not
// wait.
func TestEventsWaitForVolumes(t *testing.T) {
	sinkInTest(t, func(s *eventSink, recorder record.EventRecorder, w *writtenEvents) {
		want := func(what string, sent ...string) {
			t.Helper()
			if got := w.got(); !slices.Equal(got, sent) {
				t.Fatalf("%s: sent %q, want %q", what, got, sent)
			}
		}
		recorder.Event(podNamed("a"), corev1.EventTypeNormal, "R", "fine")
		want("nothing is worked on", "create a: fine")
		s.volumeActive(1)
		s.volumeActive(1)
		recorder.Event(podNamed("b"), corev1.EventTypeNormal, "R", "fine")
		want("two volumes are", "create a: fine")
		recorder.Event(podNamed("c"), corev1.EventTypeWarning, "R", "trouble")
		want("a warning", "create a: fine", "create c: trouble")
		s.volumeActive(-1)
		want("one volume is", "create a: fine", "create c: trouble")
		s.volumeActive(-1)
		want("none is", "create a: fine", "create c: trouble", "create b: fine")
		s.volumeActive(1)
		recorder.Event(podNamed("d"), corev1.EventTypeNormal, "R", "fine")
		time.Sleep(maxEventDelay - time.Millisecond)
		want("not yet", "create a: fine", "create c: trouble", "create b: fine")
		time.Sleep(time.Millisecond)
		want("patience is at its end", "create a: fine", "create c: trouble", "create b: fine", "create d: fine")
	})
}

// Each attach of a burst gets its event, however long the burst lasts.
func TestNoEventOfABurstIsLost(t *testing.T) {
	const pods = 5000
	sinkInTest(t, func(s *eventSink, recorder record.EventRecorder, w *writtenEvents) {
		s.volumeActive(1)
		for i := range pods {
			recorder.Event(podNamed(fmt.Sprint("p", i)), corev1.EventTypeNormal, "R", "fine")
			synctest.Wait() // they come one by one
		}
		s.volumeActive(-1)
		if got := len(w.got()); got != pods {
			t.Errorf("%d of %d events were sent", got, pods)
		}
	})
}

// An event without an answer is sent again, a refused one is not; a repeated event is counted, and created again if the
// API server has dropped it.
func TestEventsAreSentAgain(t *testing.T) {
	resource := schema.GroupResource{Resource: "events"}
	sinkInTest(t, func(_ *eventSink, recorder record.EventRecorder, w *writtenEvents) {
		w.fail(errors.New("connection refused"), apierrors.NewInternalError(errors.New("etcd")))
		recorder.Event(podNamed("a"), corev1.EventTypeNormal, "R", "fine")
		time.Sleep(time.Minute)
		if got := w.got(); w.tries != 3 || !slices.Equal(got, []string{"create a: fine"}) {
			t.Errorf("%d tries sent %q", w.tries, got)
		}
		w.fail(apierrors.NewForbidden(resource, "e", nil))
		recorder.Event(podNamed("b"), corev1.EventTypeNormal, "R", "fine")
		time.Sleep(time.Minute)
		if got := w.got(); w.tries != 4 || len(got) != 1 {
			t.Errorf("%d tries sent %q after a refusal", w.tries, got)
		}
		recorder.Event(podNamed("a"), corev1.EventTypeNormal, "R", "fine")
		time.Sleep(time.Minute)
		w.fail(apierrors.NewNotFound(resource, "e"))
		recorder.Event(podNamed("a"), corev1.EventTypeNormal, "R", "fine")
		if got := w.got(); !slices.Equal(got, []string{"create a: fine", "patch a: fine", "create a: fine"}) {
			t.Errorf("repeated: sent %q", got)
		}
	})
}
