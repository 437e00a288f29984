package recovery

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// TestTwoDeadBMCsDoNotStopAllRecovery (hole 17): two machines lose their power, and their BMCs with it (docs/recovery/power-switches.md). Their switches are bound
// and do not answer, so that each fence stores a command that reaches nothing, and waits for a person, for days. A fence counts in flight for no longer than
// its commands count in the window, or no other node would be fenced any more. What it has commanded is a brake of its own (Fences).
func TestTwoDeadBMCsDoNotStopAllRecovery(t *testing.T) {
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

// TestDeadBMCGivesTheLeaseBack: a machine loses its power, and its BMC with it. belay's detector begins its fence 275 s before NodeHealthCheck asks, and takes
// medik8s' lease of the node. NHC makes no remediation while another has it (node-healthcheck-operator v0.12.0 internal/controller/resources/lease.go:75), so no
// timeout of an escalation begins, and no other remediator gets the node. belay gives the lease back once its commands have been in vain for the window.
func TestDeadBMCGivesTheLeaseBack(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 5, InFlight: 2}, "n1", "n2")
	w.ear.silences.Forget("n2")
	w.NodeLeases, w.leases = nodeLeases, map[string]time.Time{}
	w.looks(4)
	f := &fencingv1.NodeFence{}
	must(t, w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, f))
	f.Status.Phase, f.Status.Missing = fencingv1.Phase(fencing.Fencing), []string{"an answer of the power switch"}
	f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n", NotAfter: micro(w.clock.Add(fencing.IntentFor))}}
	f.Status.Evidence = []fencingv1.Evidence{{Nonce: "n", Power: powerUnknown, BootID: "boot-n1", Time: micro(w.clock), Raw: "the BMC does not answer"}}
	must(t, w.client.Status().Update(t.Context(), f))
	for range 60 { // an hour
		w.clock = w.clock.Add(time.Minute)
		w.looks(2)
	}
	lease := &coordinationv1.Lease{}
	must(t, client.IgnoreNotFound(w.live.Get(t.Context(), client.ObjectKey{Namespace: nodeLeases, Name: kube.NodeLeaseName("n1")}, lease)))
	if by := kube.NodeLeaseHolder(lease, w.clock); by != "" {
		t.Errorf("%s has the lease an hour after its switch fell silent, acquired at %v and renewed at %v: no other remediator may begin", by, lease.Spec.AcquireTime, lease.Spec.RenewTime)
	}
}
