package fencing

import (
	"testing"
	"time"
)

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
