package recovery

import (
	"context"
	"strings"
	"testing"

	"belay.dev/belay/internal/fencing"
)

// TestSwappedSwitch (hole 6): a switch that was wired to another machine since it was last exercised is not commanded.
func TestSwappedSwitch(t *testing.T) {
	m := &machine{uuid: "4C4C4544-N2", power: fencing.PowerOn}
	command := order{machine: "4c4c4544-n1", stands: func(context.Context) error { return nil }}
	r := levels{{m}}.ask(t.Context(), &command, nil)
	if _, offs := m.count(); offs != 0 || r.power != fencing.PowerOn || !strings.Contains(r.raw, "not switched off: the hardware is 4c4c4544-n2") {
		t.Errorf("commanded %d times: %+v", offs, r)
	}
	command.machine = "4c4c4544-n2"
	r = levels{{m}}.ask(t.Context(), &command, nil)
	if _, offs := m.count(); offs != 1 || r.power != fencing.PowerOff {
		t.Errorf("commanded %d times: %+v", offs, r)
	}
}
