package recovery

import (
	"context"
	"slices"
	"strings"
	"time"
)

// nameTrouble loses the machine of a volume, with its switch, and has another machine come in its place, with a switch of its own or without, while the fence waits. That
// one may be lost too.
func (w *world) nameTrouble() {
	pods := w.plane.podsOf("v1")
	if len(pods) == 0 || !slices.Contains(simNodes[:3], pods[0].Spec.NodeName) {
		return
	}
	m := w.current(pods[0].Spec.NodeName)
	b, lost := w.switches[m.name], !m.on || m.cut
	switch {
	case !lost && (m.uses("v1") || second(m)) && w.chance(3):
		w.say("%s is cut off, and perhaps its switch is", m)
		m.cut = true
		if b != nil && w.chance(60) {
			b.mode = "dead"
		}
	case lost && len(w.open(m.name)) > 0 && !second(m) && w.chance(5):
		other := w.replace(m)
		if b != nil && w.chance(60) {
			b.wired, b.swapped, b.mode, b.queue = other, time.Now(), "ok", nil
		}
		if node := w.node(m.name); node != nil && w.chance(50) {
			w.say("a person deletes node %s", m.name)
			must2(w.t, w.api.Delete(context.Background(), node))
			w.changed("Node")
		}
	}
}

// second reports whether a machine came in the place of another.
func second(m *hardware) bool { return strings.HasSuffix(m.uuid, "'") }

// replace has another machine come in the place of one.
func (w *world) replace(m *hardware) *hardware {
	m.gone = true
	other := &hardware{name: m.name, uuid: m.uuid + "'", on: true, boot: 1, runs: map[string]string{}, refused: map[string]time.Time{}, lied: map[int]bool{}}
	w.machines = append(w.machines, other)
	w.say("%s comes in the place of %s", other, m)
	return other
}
