package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// EventComponent is the source of the events of every attach/detach controller:
// upstream's and belay's, as operators match on it.
const EventComponent = "attachdetach-controller"

// EventSelector selects the events of attach/detach controllers.
var EventSelector = fields.OneTermEqualSelector("source", EventComponent).String()

// WatchEvents calls see with each event that an attach/detach controller, belay
// included, emits from now on. It returns when the watch ends.
func WatchEvents(ctx context.Context, events typedcorev1.EventsGetter, see func(*corev1.Event)) error {
	now, err := events.Events("").List(ctx, metav1.ListOptions{FieldSelector: EventSelector, Limit: 1})
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	changes, err := events.Events("").Watch(ctx, metav1.ListOptions{FieldSelector: EventSelector, ResourceVersion: now.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch events: %w", err)
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		switch e, ok := change.Object.(*corev1.Event); {
		case change.Type == watch.Error:
			return fmt.Errorf("watch events: %w", apierrors.FromObject(change.Object))
		case ok && change.Type != watch.Deleted:
			see(e)
		}
	}
	return nil
}
