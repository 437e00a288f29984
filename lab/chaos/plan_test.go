package chaos

import (
	"testing"

	"belay.dev/belay/lab/timeline"
)

func TestSeedsSpreadOverHopsAndVictims(t *testing.T) {
	for name, tc := range map[string]struct {
		first, seeds int
		wantPerHop   int
		wantAll      bool // every hop meets every victim
	}{
		"two rounds hit every hop twice":                {seeds: 32, wantPerHop: 2},
		"two rounds from any first seed":                {first: 1234, seeds: 32, wantPerHop: 2},
		"four rounds let every hop meet every victim":   {seeds: 64, wantPerHop: 4, wantAll: true},
		"four rounds from a first seed that is not low": {first: 160, seeds: 64, wantPerHop: 4, wantAll: true},
	} {
		t.Run(name, func(t *testing.T) {
			seen := Histogram{}
			for seed := tc.first; seed < tc.first+tc.seeds; seed++ {
				plan := PlanFor(seed)
				if again := PlanFor(seed); again != plan {
					t.Fatalf("seed %d gave %v and then %v", seed, plan, again)
				}
				seen.Add(plan.Hop, plan.Victim)
			}
			for _, hop := range hops {
				sum := 0
				for _, victim := range victims {
					sum += seen[hop][victim]
					if tc.wantAll && seen[hop][victim] == 0 {
						t.Errorf("hop %q never meets the %s", hop, victim)
					}
				}
				if sum != tc.wantPerHop {
					t.Errorf("hop %q is hit %d times, want %d", hop, sum, tc.wantPerHop)
				}
			}
		})
	}
}

func TestEveryHopHasASign(t *testing.T) {
	for _, hop := range hops {
		if _, ok := timeline.SignOf(hop); !ok {
			t.Errorf("the recorder does not know hop %q", hop)
		}
	}
}
