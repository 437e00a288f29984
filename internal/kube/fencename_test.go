package kube

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestPlaceFence (hole 3): a fence is about the machine that a Node shows. While that of an earlier machine of the name waits, the next has a name of its own,
// and a higher epoch; while one of the same machine does, there is no other.
func TestPlaceFence(t *testing.T) {
	boot := fencing.Boot{Node: "n1", NodeUID: "uid-2", ID: "b-2", Machine: "hw-2"}
	names := FenceNames(boot)
	fence := func(name, machine string, epoch int64, phase fencing.Phase) *fencingv1.NodeFence {
		f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{FenceFinalizer}}}
		f.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-1", BootID: "b-1", MachineID: machine, Epoch: epoch}
		if f.Status.Phase = fencingv1.Phase(phase); phase == fencing.Released {
			f.Finalizers = nil
		}
		return f
	}
	another := fence(names[0], "hw-1", 9, fencing.Fencing)
	another.Spec.NodeName = "n1.other"
	record := fence(names[0], "hw-1", 9, fencing.Released)
	record.Spec.NodeName = "n1.other"
	for name, c := range map[string]struct {
		fences []*fencingv1.NodeFence
		want   string // empty for none
		epoch  int64
		over   int
	}{
		"none":                        {nil, names[0], 0, 0},
		"one that is over":            {[]*fencingv1.NodeFence{fence(names[0], "hw-2", 7, fencing.Released)}, names[0], 7, 1},
		"of an earlier machine":       {[]*fencingv1.NodeFence{fence(names[0], "hw-1", 7, fencing.Fencing)}, names[1], 7, 0},
		"and its own is over":         {[]*fencingv1.NodeFence{fence(names[0], "hw-1", 7, fencing.Fencing), fence(names[1], "hw-2", 8, fencing.Released)}, names[1], 8, 1},
		"of an earlier boot":          {[]*fencingv1.NodeFence{fence(names[0], "hw-2", 7, fencing.Moved)}, "", 0, 0},
		"its own, beside an earlier":  {[]*fencingv1.NodeFence{fence(names[0], "hw-1", 7, fencing.Fencing), fence(names[1], "hw-2", 8, fencing.Fencing)}, "", 0, 0},
		"another node's has the name": {[]*fencingv1.NodeFence{another}, names[1], 0, 0},
		"and that one is over":        {[]*fencingv1.NodeFence{record}, names[0], 0, 1},
	} {
		place, free := PlaceFence(c.fences, boot)
		if free != (c.want != "") || free && (place.Name != c.want || place.Epoch != c.epoch || len(place.Over) != c.over) {
			t.Errorf("%s: %+v, free %t", name, place, free)
		}
	}
}

// TestFenceNames: the names are those of objects, of each node and machine another.
func TestFenceNames(t *testing.T) {
	seen := map[string]bool{}
	for _, node := range []string{"n1", "n1.example.com", strings.Repeat("a", 253), strings.Repeat("a.", 126) + "a", strings.Repeat("a", 235) + ".b" + strings.Repeat("c", 16)} {
		for _, machine := range []string{"hw-1", "hw-2"} {
			names := FenceNames(fencing.Boot{Node: node, Machine: machine})
			if errs := validation.IsDNS1123Subdomain(names[1]); names[0] != node || len(errs) > 0 || seen[names[1]] {
				t.Errorf("%s: %q %v, seen %t", node, names, errs, seen[names[1]])
			}
			seen[names[1]] = true
		}
	}
}

// TestLatestFence: one that is not over comes before the record of a later one.
func TestLatestFence(t *testing.T) {
	open := &fencingv1.NodeFence{Spec: fencingv1.NodeFenceSpec{NodeName: "n1", Epoch: 1}}
	over := &fencingv1.NodeFence{Spec: fencingv1.NodeFenceSpec{NodeName: "n1", Epoch: 2}, Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(fencing.Released)}}
	if got := LatestFence([]*fencingv1.NodeFence{over, open}, "n1"); got != open {
		t.Errorf("%+v", got)
	}
	if got := LatestFence([]*fencingv1.NodeFence{over}, "n1"); got != over || LatestFence([]*fencingv1.NodeFence{over}, "n2") != nil {
		t.Errorf("%+v", got)
	}
}
