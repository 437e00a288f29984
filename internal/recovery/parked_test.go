package recovery

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestParkedNodeIsLookedAtAsOftenAsItSays: a node was drained, and its machine is off, for a night or for months. A look costs a request to its address, two reads
// of its Node, one of its lease and a list of its pods, all of the API server at quorum. A node that was looked at, and is not fenced, is read again after
// Suspicion.After and not before, unless the caches say something else of it: a power switch that says Off.
func TestParkedNodeIsLookedAtAsOftenAsItSays(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 9}, "n1", "n2")
	w.ear.silences.Forget("n2")
	must(t, w.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("default")))
	lists := 0
	w.live = interceptor.NewClient(w.live.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, more ...client.ListOption) error {
			if _, pods := o.(*corev1.PodList); pods {
				lists++
			}
			return c.List(ctx, o, more...)
		},
	})
	w.looks(int(time.Minute / tickEvery))
	if most := int(time.Minute/fencing.MaxTickGap) + 1; lists > most {
		t.Errorf("the pods of a node that has nothing to lose were listed %d times in a minute, more than %d: %v", lists, most, w.said)
	}
	w.looks(1)
	before := lists
	source := &fencingv1.FenceSource{}
	must(t, w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
	source.Status.Power = &fencingv1.PowerState{State: powerOff, Time: micro(w.clock)}
	must(t, w.client.Status().Update(t.Context(), source))
	w.looks(1)
	if lists != before+1 {
		t.Errorf("its switch says Off, and it is not looked at: %d", lists-before)
	}
}
