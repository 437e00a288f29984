package recovery

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/wait"
)

// NodeHealthCheck escalates: belay's remediation has timed out, because the machine does not obey. NHC makes the next one, such as that of metal3, which
// switches the machine off and on, under the lease of the node. belay commanded once, so its fence continues (MayEnd), and commands again each half
// minute, although nothing asks for it and another component works on the node: a machine that starts for longer than that is never up, since each
// start is ended by belay, and it does not end after the escalation either.
// What must hold: a fence whose remediations have all timed out sends no new command. It takes what evidence there is: an Off that another caused.
func TestHostileTimedOutRemediationCommandsNoMore(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run(withLeases)
	m.bound()
	s.template("belay", nil)
	n := newNHC(s, "workers")
	m.mu.Lock()
	m.disobeys = true
	m.mu.Unlock()
	must(t, n.lease("n1", "NodeHealthCheck-workers", time.Hour))
	m.dies(fencing.PowerOn)
	cr := n.remediates("n1", "belay")
	wait.Until(t, "the machine was commanded", func() bool { _, offs := m.count(); return offs > 0 })
	if f := m.fence(); f.Spec.Trigger != fencingv1.TriggerRemediation {
		t.Fatalf("the trigger is %s: the test shows nothing", f.Spec.Trigger)
	}
	n.timesOut(cr)
	time.Sleep(2 * remediateAgain) // it is looked at once a second
	_, before := m.count()
	patch := `{"status":{"intents":[{"action":"Off","nonce":"` + m.fence().Status.Intents[0].Nonce + `","notAfter":"2026-01-01T00:00:00.000000Z"}]}}`
	must(t, s.client.Status().Patch(t.Context(), m.fence(), client.RawPatch(types.MergePatchType, []byte(patch)))) // the half minute is over
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, offs := m.count(); offs > before {
			t.Fatalf("NHC's next remediator has the node and its lease (%s), and belay switches the machine off again", s.holder("n1"))
		}
	}
}
