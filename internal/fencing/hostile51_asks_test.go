package fencing

import (
	"testing"
	"time"
)

// A machine ignores the command (its BMC says On), or its BMC answers at once that it knows nothing, for weeks. The fence asks once a second for all of that
// time, and commands each half minute. Each question is a write by the actor and one by the fencer, to etcd, and a login at the BMC; a BMC whose password
// was changed locks the account of who asks 86,400 times a day. The switch of a node that lives is asked less and less often (logins.due), and that of
// a deleted Node each ten seconds (AskDeletedEvery).
// What must hold: after an hour without news a fence asks its switch no more often than that of a deleted Node.
func TestHostileFenceThatWaitsForDaysAsksSeldom(t *testing.T) {
	for name, power := range map[string]Power{"On": PowerOn, "no answer": PowerUnknown} {
		s := newStand(t)
		s.power, s.disobeys = power, true
		for range 60 {
			s.waits()
		}
		asks, commands := count[Ask](s), count[Command](s)
		for range 60 {
			s.waits()
		}
		asks, commands = count[Ask](s)-asks, count[Command](s)-commands
		if most := int(time.Hour / AskDeletedEvery); asks+commands > most {
			t.Errorf("%s: in its second hour the fence asked %d times and commanded %d times, each two writes and a login: more than %d", name, asks, commands, most)
		}
	}
}
