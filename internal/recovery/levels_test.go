package recovery

import (
	"context"
	"strings"
	"testing"
	"time"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// loginsOf are those of a new source of some levels.
func loginsOf(levels int) logins {
	return (&sourceState{levels: map[int]*levelState{}}).logins(&fencingv1.FenceSource{}, make([]string, levels), time.Now())
}

// TestSwappedSwitch (hole 6): a switch that was wired to another machine since it was last exercised is not commanded.
func TestSwappedSwitch(t *testing.T) {
	m := &machine{uuid: "4C4C4544-N2", power: fencing.PowerOn}
	command := order{machine: "4c4c4544-n1", stands: func(context.Context) error { return nil }}
	r := levels{{m}}.ask(t.Context(), loginsOf(1), &command, nil)
	if _, offs := m.count(); offs != 0 || r.power != fencing.PowerOn || !strings.Contains(r.raw, "not switched off: the hardware is 4c4c4544-n2") {
		t.Errorf("commanded %d times: %+v", offs, r)
	}
	command.machine = "4c4c4544-n2"
	r = levels{{m}}.ask(t.Context(), loginsOf(1), &command, nil)
	if _, offs := m.count(); offs != 1 || r.power != fencing.PowerOff {
		t.Errorf("commanded %d times: %+v", offs, r)
	}
}

// TestUnknownLevel (hole 6): a switch without an identity that has not said On while the node lived is not asked, and not commanded.
func TestUnknownLevel(t *testing.T) {
	m := &machine{power: fencing.PowerOff}
	command := order{machine: "4c4c4544-n1", stands: func(context.Context) error { return nil }}
	for _, off := range []*order{nil, &command} {
		r := levels{{nameless{m}}}.ask(t.Context(), loginsOf(1), off, nil)
		if asked, offs := m.count(); asked+offs != 0 || r.power != fencing.PowerUnknown {
			t.Errorf("asked %d times and commanded %d times: %+v", asked, offs, r)
		}
	}
}
