package recovery

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestUpstreamForces (hole 18): the condition is True from the phase in which pods are deleted until no volume is left, and never before.
func TestUpstreamForces(t *testing.T) {
	status := &fencingv1.NodeFenceStatus{}
	for _, p := range []fencing.Phase{fencing.Isolating, fencing.Fencing, fencing.Tainting, fencing.Releasing} {
		if upstreamForces(status, p); len(status.Conditions) > 0 {
			t.Fatalf("set in %s: %+v", p, status.Conditions)
		}
	}
	for p, want := range map[fencing.Phase]bool{fencing.Evicting: true, fencing.Detaching: true} {
		upstreamForces(status, fencing.Evicting)
		if upstreamForces(status, p); meta.IsStatusConditionTrue(status.Conditions, conditionUpstreamForces) != want {
			t.Errorf("%s: %+v", p, status.Conditions)
		}
	}
	for _, p := range []fencing.Phase{fencing.Moved, fencing.Releasing} {
		upstreamForces(status, fencing.Evicting)
		if upstreamForces(status, p); !meta.IsStatusConditionFalse(status.Conditions, conditionUpstreamForces) {
			t.Errorf("%s: %+v", p, status.Conditions)
		}
	}
}
