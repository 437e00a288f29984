package recovery

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// comeAndGo is how many nodes a fleet has had that is scaled up and down.
const comeAndGo = 3000

// TestGoneNodesAreForgotten: the detector keeps nothing of nodes that are gone, and what it knows of those that are there.
func TestGoneNodesAreForgotten(t *testing.T) {
	w := watch(t, fencing.Brakes{}, "n1", "n2", "n3") // which allow no fence
	looksAt := func(name string) {
		n := nodeOf(name, 0)
		w.report(t.Context(), n, fencing.Suspicion{Reason: fencing.SignOfLife})
		w.tellAsker(&fencing.Node{Boot: bootOf(n), Asked: true}, fencing.SignOfLife)
	}
	for i := range comeAndGo {
		looksAt(fmt.Sprint("node-", i))
	}
	looksAt("n1")
	if len(w.held) <= comeAndGo || len(w.looked) <= comeAndGo {
		t.Fatalf("%d and %d are kept: the test shows nothing", len(w.held), len(w.looked))
	}
	_, _, err := w.fleet(t.Context())
	must(t, err)
	if len(w.held) != 1 || len(w.looked) != 1 || w.held["n1"].reason != fencing.SignOfLife || w.lookedAt("n1") != fencing.SignOfLife {
		t.Errorf("%d nodes came and went, one is there, and %d and %d are kept", comeAndGo, len(w.held), len(w.looked))
	}
}

// TestGoneSwitchesAreForgotten: the fencer keeps nothing of a FenceSource that was deleted.
func TestGoneSwitchesAreForgotten(t *testing.T) {
	f := newFencer(partsOver(dialing(nil)))
	for i := range comeAndGo / 10 {
		name := fmt.Sprint("node-", i)
		s := sourceOf(name, "bmc-of-"+name)
		must(t, f.client.Create(t.Context(), s))
		served := func() {
			_, err := f.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
			must(t, err)
		}
		if served(); len(f.sources) == 0 {
			t.Fatal("nothing is kept of one that is there: the test shows nothing")
		}
		must(t, f.client.Delete(t.Context(), s))
		served()
	}
	if len(f.sources) > 0 {
		t.Errorf("%d are kept of FenceSources that came and went", len(f.sources))
	}
}

// TestGoneFencesAreForgotten: the actor keeps nothing of a NodeFence that was removed by force, also if the next one of the name is there before it looks.
func TestGoneFencesAreForgotten(t *testing.T) {
	s := newStage(t, fencing.Moved)
	s.changeNode(func(n *corev1.Node) { setReady(n, corev1.ConditionUnknown) })
	first := s.fence()
	for i := range comeAndGo / 20 { // each is read, decided on and written
		s.turns()
		if len(s.known) != 1 {
			t.Fatalf("%d fences are kept after %d came, and one is there", len(s.known), i+1)
		}
		f := s.fence()
		f.Finalizers = nil
		must(t, s.client.Update(t.Context(), f))
		must(t, s.client.Delete(t.Context(), f))
		if i%2 == 0 {
			s.turns()
		}
		next := &fencingv1.NodeFence{ObjectMeta: first.ObjectMeta, Spec: first.Spec}
		next.UID, next.ResourceVersion = types.UID(fmt.Sprint("next-", i)), ""
		must(t, s.client.Create(t.Context(), next))
		next.Status.Phase = fencingv1.Phase(fencing.Moved)
		must(t, s.client.Status().Update(t.Context(), next))
	}
}
