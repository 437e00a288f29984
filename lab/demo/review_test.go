package demo

import "testing"

// TestMedianOfTwo is not the slower one of the two.
func TestMedianOfTwo(t *testing.T) {
	r := &Result{Plane: "belay", NodeKind: "kubelet", Steps: []Step{{Move: drained(5000)}, {Move: drained(0)}}}
	one := &Result{Plane: "belay", NodeKind: "kubelet", Steps: []Step{{Move: drained(5000)}}}
	got, slower := r.outcomes()[0], one.outcomes()[0]
	if got.Moves == 2 && got.Seconds == slower.Seconds {
		t.Errorf("%s: %.1f s, which is the greatest of both", got.what(), got.Seconds)
	}
}
