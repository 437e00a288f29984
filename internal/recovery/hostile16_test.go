package recovery

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// podsUnreadable has the API server fail to list the pods of a node: they are too many bytes for the time there is, as tenants may make them.
func (w *watched) podsUnreadable(node string) {
	w.live = interceptor.NewClient(w.live.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		options := (&client.ListOptions{}).ApplyOptions(o)
		if _, pods := list.(*corev1.PodList); pods && options.FieldSelector != nil && options.FieldSelector.String() == fields.OneTermEqualSelector("spec.nodeName", node).String() {
			return errors.New("context deadline exceeded")
		}
		return c.List(ctx, list, o...)
	}})
}

// The pods of one silent node cannot be listed in time. What is not known about it is a reason not to fence it, and none not to fence another: the look at
// all nodes ends, and no node is fenced for as long as that one is silent. Tenants write pods, and may make them large.
func TestHostilePodsOfOneNodeDoNotStopAllRecovery(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 9}, "n1", "n2")
	w.podsUnreadable("n1")
	w.looks(10)
	if err := w.live.Get(t.Context(), client.ObjectKey{Name: "n2"}, &fencingv1.NodeFence{}); err != nil {
		t.Errorf("n2 is silent for an hour and not fenced, because the pods of n1 cannot be listed: %v; events: %v", err, w.said)
	}
}
