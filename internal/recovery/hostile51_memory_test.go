package recovery

import (
	"fmt"
	"testing"
	"time"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// A fence waits for weeks for a switch that says On, and asks it once a second. Actor and fencer remember the nonce of each question: the actor as
// long as the fence lasts, in the process of belay-controller too, and the fencer as long as it runs, over all fences. That is 86,400 entries a day for each
// fence, some 10 MB, until the process that attaches and detaches for the cluster ends at its limit of memory.
// What must hold: what is remembered of questions is bounded, as what is stored of them is (maxEvidence, maxIntents).
func TestHostileWaitingFenceKeepsABoundedMemory(t *testing.T) {
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
	if n := len(s.remember("fence-1").asked); n > most {
		t.Errorf("after %d seconds the actor remembers %d questions", questions, n)
	}
	f, _, _, fence := commanded(t)
	state := f.state("n1")
	for i := range questions {
		must(t, f.answer(t.Context(), state, fence, fmt.Sprint("nonce-", i), reply{raw: "Status: ON", took: time.Millisecond}))
	}
	if n := len(state.answered); n > most {
		t.Errorf("after %d answers the fencer remembers %d, of fences that are over too", questions, n)
	}
}
