package fencing

import (
	"testing"
	"time"
)

// The network is parted for a minute, and the BMC of a node hangs, as BMCs do. A command is stored, and reaches nobody. Then the node renews its lease
// and is Ready, under the same boot, or under the next one. Nothing will be carried out any more: the intent ended long ago. But the fence waits for an answer
// of the BMC, and the node gets no pods for as long as its BMC hangs. The exit that SourceSilent names is "the power switch answers, or a person makes a
// statement": a statement ends neither of the two.
// What must hold: a node that has renewed its lease for some minutes after the last command could be carried out gets pods again, whatever its switch does.
func TestHostileSilentSwitchIsolatesNoLivingNode(t *testing.T) {
	for name, reach := range map[string]func(*stand){
		"the same boot lives": func(s *stand) {
			s.power, s.disobeys = PowerUnknown, true
			for count[Command](s) == 0 {
				if !s.turn() {
					s.now = s.now.Add(time.Second)
				}
			}
			s.power = PowerUnknown
		},
		"its next boot": func(s *stand) {
			s.until(Moved)
			s.power, s.seen.Now = PowerUnknown, boot2
		},
	} {
		s := newStand(t)
		reach(s)
		s.seen.Ready, s.seen.Renewed, s.seen.Silent, s.seen.AliveSince = Yes, true, false, s.now
		s.fence.Statement = &Statement{By: "ada", Reason: "looked", Machine: boot1.Machine, Made: s.now, Expires: s.now.Add(time.Hour), Guarded: true}
		began := s.now
		for range 30 {
			s.waits()
		}
		if d := Decide(s.now, s.fence, s.seen); s.seen.Isolated {
			t.Errorf("%s: a node that is Ready and renews its lease for %v is isolated in %s, and waits for %s (%s)", name, s.now.Sub(began), s.fence.Phase, d.Reason, Exits[d.Reason].By)
		}
	}
}
