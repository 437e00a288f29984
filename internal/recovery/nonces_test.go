package recovery

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestNoncesAreBounded: a fence waits for weeks for a switch that says On, and asks it once a second. What actor and fencer remember of the questions is
// bounded, as what is stored of them is (maxEvidence, maxIntents), and no question is answered twice for that.
func TestNoncesAreBounded(t *testing.T) {
	const questions, most = 200, 2 * maxEvidence
	s := newStage(t, fencing.Fencing)
	for range questions {
		s.turns()
		if f := s.fence(); f.Status.Question != nil {
			f.Status.Evidence = lastOf(append(f.Status.Evidence, fencingv1.Evidence{
				Nonce: f.Status.Question.Nonce, Power: powerOn, BootID: "boot-n1", MachineID: "hw-n1", Time: micro(s.clock),
			}), maxEvidence)
			must(t, s.client.Status().Update(t.Context(), f))
		}
		s.clock = s.clock.Add(fencing.AskEvery)
		s.ear.silences.Tick(s.clock)
	}
	if n := len(s.remember(s.fence()).asked); n > most {
		t.Errorf("after %d seconds the actor remembers %d questions", questions, n)
	}
	f, bmc, _, fence := commanded(t)
	state := f.state("n1")
	for i := range questions {
		must(t, f.live.Get(t.Context(), client.ObjectKeyFromObject(fence), fence))
		fence.Status.Question = &fencingv1.Question{Nonce: fmt.Sprint("nonce-", i), Time: micro(f.now())}
		must(t, f.client.Status().Update(t.Context(), fence))
		for range 3 {
			_, err := f.Reconcile(t.Context(), request("n1")[0])
			must(t, err)
		}
	}
	if n := len(state.answered) + len(state.unstored); n > most {
		t.Errorf("after %d answers the fencer remembers %d", questions, n)
	}
	if asked, offs := bmc.count(); asked != questions+1 || offs != 1 {
		t.Errorf("%d questions and one command: asked %d times, commanded %d times", questions, asked, offs)
	}
	must(t, f.client.Delete(t.Context(), fence))
	f.now = func() time.Time { return time.Now().Add(time.Hour) }
	_, err := f.Reconcile(t.Context(), request("n1")[0])
	must(t, err)
	if n := len(state.answered); n > 0 {
		t.Errorf("the fencer remembers %d answers of a fence that is gone", n)
	}
}
