package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

var everything = labels.Everything()

// looks wakes all that wait for the state of the lab to change.
type looks struct {
	mu      sync.Mutex
	changed chan struct{}
}

func (l *looks) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *looks) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// watchState keeps caches of what the waits look at.
func watchState(ctx context.Context, client kubernetes.Interface) (informers.SharedInformerFactory, *looks, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	look := &looks{changed: make(chan struct{})}
	core, storage := factory.Core().V1(), factory.Storage().V1()
	for _, informer := range []cache.SharedIndexInformer{
		core.Pods().Informer(), core.Nodes().Informer(), core.Events().Informer(),
		core.PersistentVolumes().Informer(), core.PersistentVolumeClaims().Informer(),
		storage.VolumeAttachments().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { look.wake() },
			UpdateFunc: func(any, any) { look.wake() },
			DeleteFunc: func(any) { look.wake() },
		})
		if err != nil {
			return nil, nil, fmt.Errorf("watch the lab: %w", err)
		}
	}
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil, nil, fmt.Errorf("wait for the first list of %v: %w", kind, context.Cause(ctx))
		}
	}
	return factory, look, nil
}

// lookAgain: some waits are for things that no watch reports, such as the log of a pod.
const lookAgain = 200 * time.Millisecond

// await waits until done says so, looking whenever the lab changes. what completes
// the sentence "waited 60s for ...". The last events are part of the error.
func (s *Scene) await(ctx context.Context, limit time.Duration, what string, done func() (bool, error)) error {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		changed := s.look.next() // before the look, so that no change falls between
		ok, err := done()
		if err != nil {
			return fmt.Errorf("while waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("stopped while waiting for %s: %w", what, cause)
			}
			return fmt.Errorf("waited %v for %s\n%s", limit, what, s.lastEvents(10))
		}
	}
}

// lastEvents are the newest events and the state of the pods, for a failure's text.
func (s *Scene) lastEvents(n int) string {
	var out strings.Builder
	pods, err := s.state.Core().V1().Pods().Lister().List(everything)
	if err != nil {
		return err.Error()
	}
	for _, pod := range pods {
		deleting := ""
		if pod.DeletionTimestamp != nil {
			deleting = ", being deleted"
		}
		fmt.Fprintf(&out, "  pod %s/%s: %s on %q%s\n", pod.Namespace, pod.Name, pod.Status.Phase, pod.Spec.NodeName, deleting)
	}
	events, err := s.state.Core().V1().Events().Lister().List(everything)
	if err != nil {
		return err.Error()
	}
	slices.SortFunc(events, func(a, b *corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	if len(events) > n {
		events = events[len(events)-n:]
	}
	out.WriteString("  last events:\n")
	for _, e := range events {
		fmt.Fprintf(&out, "    %s %s %s/%s: %s\n", eventTime(e).Format("15:04:05"), e.Reason,
			e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
	}
	return out.String()
}

// eventTime is the newest time that an event of either API carries.
func eventTime(e *corev1.Event) time.Time {
	newest := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(newest) {
			newest = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(newest) {
		newest = e.Series.LastObservedTime.Time
	}
	return newest
}
