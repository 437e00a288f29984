package recovery

import (
	"context"
	"errors"
	"testing"

	"belay.dev/belay/internal/fencing"
)

// The second level of n1 is an outlet of a PDU, and a person has typed the wrong one: it feeds n2, which has no outlet in its own FenceSource, so that no
// two FenceSources name it. An outlet gives no identity. All outlets of a rack say On, so that it said On while n1 lived says nothing of whose it is; as the
// only level it would need a person's word (the annotation fencing.belay.dev/machine), and nobody gave it. n1 hangs, and its BMC with it: n2, which is Ready, loses
// its power (S8), and its Off is taken for that of n1, which still writes (S1).
// What must hold: a level whose hardware gives no identity needs the word of a person, whether or not another level gives one.
func TestHostileOutletOfAnotherMachineIsNotCommanded(t *testing.T) {
	bmc, others := &machine{uuid: "hw-n1", power: fencing.PowerOn}, &machine{power: fencing.PowerOn}
	source, node := sourceOf("n1", "bmc", "outlet"), nodeOf("n1", 0)
	source.Annotations = nil // no person said whose the outlet is
	f := newFencer(partsOver(dialing(map[string]Switch{"bmc": bmc, "outlet": nameless{others}}), node, source))
	f.check(t.Context(), source, node, false)
	if source.Status.Bound == nil {
		t.Fatalf("it is not bound: the test shows nothing: %+v", source.Status.Conditions)
	}
	bmc.failing = errors.New("the BMC does not answer")
	all, versions, err := f.dial(t.Context(), source)
	must(t, err)
	command := order{machine: "hw-n1", stands: func(context.Context) error { return nil }}
	r := all.ask(t.Context(), f.state("n1").logins(source, versions, f.now()), &command, knownLevels(source))
	if _, offs := others.count(); offs > 0 || r.power != fencing.PowerUnknown {
		t.Errorf("n2 was switched off %d times, and n1 counts as %s", offs, powerName(r.power))
	}
}
