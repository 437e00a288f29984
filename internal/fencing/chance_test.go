package fencing

import (
	"testing"
	"time"

	"belay.dev/belay/internal/decision"
)

// TestChanceOfAStoppedKubelet: systemctl stop kubelet, or a kubelet that is restarted for its upgrade, on a machine whose containers serve. With each profile nothing happens
// to it until the cluster has given it up, or its time is over. A machine that gives no answer at all is suspected after the silence of the profile.
func TestChanceOfAStoppedKubelet(t *testing.T) {
	for _, p := range []Profile{Default, Fast} {
		suspected := func(silent time.Duration, change func(*Node)) decision.Reason {
			n := quietNode("node-0", "")
			n.Silent, n.Limit, n.Endpoint = silent, p.Limit(p.LeaseDuration), No
			change(&n)
			f := fleet(1, 9, noZone)
			f.Nodes[0] = n
			return Suspect(start, p, DefaultBrakes(), f.Count(), n).Reason
		}
		refuses := func(n *Node) { n.Refused = true }
		for _, silent := range []time.Duration{p.Silence, p.Silence + 15*time.Second, p.Chance - time.Millisecond} {
			if got := suspected(silent, refuses); got != SignOfLife {
				t.Errorf("%s: a machine that refuses, silent for %v: %s", p.Name, silent, got)
			}
		}
		for name, got := range map[string]decision.Reason{
			"a pod was evicted":      suspected(time.Minute+p.Silence, func(n *Node) { refuses(n); n.GivenUp = true }),
			"its time is over":       suspected(p.Chance, refuses),
			"its switch says Off":    suspected(p.Silence, func(n *Node) { refuses(n); n.PowerOff = Yes }),
			"it gives no answer":     suspected(p.Silence, func(*Node) {}),
			"no answer, still Ready": suspected(p.Silence, func(n *Node) { n.Ready = Yes }),
		} {
			if got != Settled {
				t.Errorf("%s, %s: %s", p.Name, name, got)
			}
		}
		if got := suspected(p.Silence-time.Millisecond, func(*Node) {}); got != SilenceTooShort {
			t.Errorf("%s, a moment too early: %s", p.Name, got)
		}
	}
}

// TestAbandonedByTheCluster: the cluster abandons a node with its pods that have volumes, and not for the pods that it would not move.
func TestAbandonedByTheCluster(t *testing.T) {
	const grace = 30 * time.Second
	over := func(d time.Duration) Occupant { return Occupant{Storage: true, Expired: d, Grace: grace} }
	for name, c := range map[string]struct {
		pod    Occupant
		silent time.Duration
		want   bool
	}{
		"it runs":                         {Occupant{Storage: true}, time.Hour, false},
		"it was evicted":                  {Occupant{Storage: true, Evicted: true, Grace: grace}, grace + time.Minute, true},
		"evicted, and silent for less":    {Occupant{Storage: true, Evicted: true, Grace: grace}, grace + time.Minute - time.Millisecond, false},
		"it was evicted, and has ended":   {Occupant{Storage: true, Evicted: true, Ended: true}, time.Hour, false},
		"evicted, without a volume":       {Occupant{Evicted: true}, time.Hour, false},
		"it terminates":                   {over(-grace), time.Hour, false},
		"its grace period has ended":      {over(time.Millisecond), time.Hour, false},
		"a minute ago":                    {over(time.Minute), time.Hour, true},
		"a minute ago, without a volume":  {Occupant{Expired: time.Minute, Grace: grace}, time.Hour, false},
		"long ago, and silent for less":   {over(time.Hour), grace + time.Minute - time.Millisecond, false},
		"long ago, and silent for enough": {over(time.Hour), grace + time.Minute, true},
	} {
		if got := c.pod.GivesUp(c.silent); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
