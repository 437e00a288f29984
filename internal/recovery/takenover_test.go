package recovery

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestOutletOfAMachineThatWasReplaced (hole 6): a server died while its PDU gave no answer, and another one was put in its place, at the same outlet and under the
// same name. The outlet gives no identity: it neither switches the new machine off for the fence of the first one, nor says anything about the first one, which may run
// elsewhere by now. Hardware that says who it is still does.
func TestOutletOfAMachineThatWasReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		replaced, nameless, off bool
	}{
		"the Node shows the machine":      {false, true, true},
		"another machine is in its place": {true, true, false},
		"and the hardware says who it is": {true, false, true},
		"no other one, and it says who":   {false, false, true},
	} {
		for _, power := range []fencing.Power{fencing.PowerOn, fencing.PowerOff} {
			node, source, hardware := nodeOf("n1", 0), sourceOf("n1", "pdu"), &machine{uuid: "hw-before", power: power}
			was := fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-before", MachineID: "hw-before", Epoch: 1}
			if !c.replaced {
				node.Status.NodeInfo.BootID, node.Status.NodeInfo.SystemUUID = was.BootID, was.MachineID
			}
			source.Annotations[fenceMachine] = was.MachineID
			source.Status.Bound = &fencingv1.Bound{
				NodeUID: was.NodeUID, BootID: was.BootID, MachineID: was.MachineID, HardwareID: was.MachineID, Levels: []int32{0}, Generation: source.Generation,
			}
			lease := leaseOf("n1")
			fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "fence-1", Finalizers: []string{finalizer}}, Spec: was}
			fence.Status.Phase = fencingv1.Phase(fencing.Fencing)
			fence.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "off", NotAfter: micro(time.Now().Add(fencing.IntentFor)), Renewal: renewal(lease)}}
			var s Switch = hardware
			if c.nameless {
				s = nameless{hardware}
			}
			p := partsOver(dialing(map[string]Switch{"pdu": s}), node, nodeOf("n9", 0), source, fence, lease)
			p.hears(lease)
			f := newFencer(p)
			for range 3 {
				if _, err := f.Reconcile(t.Context(), request("n1")[0]); err != nil {
					t.Fatal(err)
				}
			}
			must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(fence), fence))
			said := len(fence.Status.Evidence) == 1 && fence.Status.Evidence[0].Power == powerOff && fence.Status.Evidence[0].Class == string(fencing.PoweredOff)
			if _, offs := hardware.count(); (offs > 0) != c.off || said != c.off {
				t.Errorf("%s, the power is %s: commanded %d times, answers %+v", name, powerName(power), offs, fence.Status.Evidence)
			}
		}
	}
}
