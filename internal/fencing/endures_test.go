package fencing

import (
	"testing"
	"time"
)

// sent brings a fence to where a command to switch off is stored, and nothing more is heard from the switch.
func (s *stand) sent() {
	s.t.Helper()
	s.disobeys = true
	for range 200 {
		if count[Command](s) > 0 {
			return
		}
		if !s.turn() {
			s.now = s.now.Add(time.Second)
		}
	}
	s.t.Fatal("no command was stored")
}

// TestSilentSwitchIsolatesNoLivingNode (hole 5): a node that is Ready and has renewed its lease for EnduresFor since the last command could be carried out gets pods
// again, whatever its switch does, under the same boot and under the next one. One that does not show as much waits for the switch. Nothing is taken from it by that.
func TestSilentSwitchIsolatesNoLivingNode(t *testing.T) {
	for name, reach := range map[string]func(*stand){
		"the same boot": (*stand).sent,
		"its next boot": func(s *stand) { s.until(Moved); s.seen.Now = boot2 },
	} {
		for says, power := range map[string]Power{"nothing": PowerUnknown, "Off": PowerOff} {
			if power == PowerOff && name == "the same boot" {
				continue // that is an answer
			}
			for state, c := range map[string]struct {
				change func(*stand)
				want   bool
			}{
				"lives":             {func(*stand) {}, true},
				"is not Ready":      {func(s *stand) { s.seen.Ready = No }, false},
				"is silent again":   {func(s *stand) { s.seen.Silent = true }, false},
				"has never renewed": {func(s *stand) { s.seen.AliveSince = time.Time{} }, false},
			} {
				s := newStand(t)
				reach(s)
				s.power, s.seen.Source.Status = power, Answer{}
				s.seen.Ready, s.seen.Renewed, s.seen.Silent, s.seen.AliveSince = Yes, true, false, s.now
				from := s.now
				if from.Before(s.fence.Intent.NotAfter) {
					from = s.fence.Intent.NotAfter
				}
				c.change(s)
				taken := count[Taint](s) + count[DeletePod](s) + count[DeleteAttachment](s)
				for s.now.Before(from.Add(EnduresFor - time.Second)) {
					if s.turn(); !s.seen.Isolated {
						break
					}
					s.now = s.now.Add(500 * time.Millisecond)
				}
				if !s.seen.Isolated {
					lost := state == "is silent again" && name == "its next boot"
					if !lost {
						t.Errorf("%s %s, its switch says %s: it gets pods %v after the last command", name, state, says, s.now.Sub(from))
					}
					continue
				}
				s.waits()
				s.waits()
				if d := Decide(s.now, s.fence, s.seen); s.seen.Isolated == c.want {
					t.Errorf("%s %s, its switch says %s: isolated %t in %s, and waits for %s", name, state, says, s.seen.Isolated, s.fence.Phase, d.Reason)
				}
				if n := count[Taint](s) + count[DeletePod](s) + count[DeleteAttachment](s) - taken; n > 0 {
					t.Errorf("%s %s: %d steps took something from a boot that runs", name, state, n)
				}
			}
		}
	}
}
