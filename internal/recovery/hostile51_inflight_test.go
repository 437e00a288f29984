package recovery

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// Two machines lose their power, and their BMCs with it (docs/recovery/power-switches.md: "A loss of AC power takes the BMC too. belay then waits").
// Their switches are bound and do not answer, so that each fence stores a command that reaches nobody, and waits for a person, for days. Each counts in
// flight for all of that time (Fence.MayTake), and the brake has two places: no other node of the cluster is fenced any more, although the power switch of
// each says Off at once.
// What must hold: a fence counts in flight for no longer than its commands count in the window. What it has commanded is a brake of its own (Fences).
func TestHostileTwoDeadBMCsDoNotStopAllRecovery(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 5, InFlight: 2}, "n1", "n2", "n3")
	w.stamps()
	w.looks(20)
	if n := w.fences(); n != 2 {
		t.Fatalf("%d fences: the test shows nothing", n)
	}
	commanded := w.clock
	fences := &fencingv1.NodeFenceList{}
	must(t, w.live.List(t.Context(), fences))
	for i := range fences.Items {
		f := &fences.Items[i]
		f.Status.Phase, f.Status.Missing = fencingv1.Phase(fencing.Fencing), []string{"the power switch does not answer"}
		f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n-" + f.Name, NotAfter: micro(commanded.Add(fencing.IntentFor))}}
		must(t, w.client.Status().Update(t.Context(), f))
		source := &fencingv1.FenceSource{}
		must(t, w.live.Get(t.Context(), client.ObjectKey{Name: f.Name}, source))
		source.Status.Command = &fencingv1.SentCommand{Nonce: "n-" + f.Name, Fence: string(f.UID), Time: micro(commanded)}
		must(t, w.client.Status().Update(t.Context(), source))
	}
	w.clock = w.clock.Add(24 * time.Hour)
	w.looks(20)
	if n := w.fences(); n != 3 {
		t.Errorf("a day after two BMCs died, the third node is still not fenced: %v", w.said)
	}
}
