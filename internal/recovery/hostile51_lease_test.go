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

// A machine loses its power, and its BMC with it. belay's detector begins its fence after 25 s, 275 s before NodeHealthCheck asks, and takes medik8s' lease of the
// node. The switch is bound and does not answer, so belay can prove nothing, and renews the lease for as long as the node is dead. NHC makes no remediation
// while another has the lease (node-healthcheck-operator v0.12.0 internal/controller/resources/lease.go:75): no timeout of an escalation begins, and no other
// remediator ever gets the node, which it would have without belay (docs/nodehealthcheck.md: "NHC continues with the next one where belay can prove nothing").
// What must hold: belay gives the lease back once its switch has not answered for some minutes.
func TestHostileDeadBMCGivesTheLeaseBack(t *testing.T) {
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
