package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestBudget: the parts are the whole, also when a moment came before its turn or was not seen.
func TestBudget(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	got := budget(start, []moment{
		{"suspected", after(9)}, {"ordered off", time.Time{}}, {"off", after(10.5)}, {"detached", after(10)}, {"bound", after(10.7)}, {"written", after(12)},
	})
	want := []Hop{{"suspected", 9}, {"off", 1.5}, {"detached", 0}, {"bound", 0.2}, {"written", 1.3}}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	sum := 0.0
	for _, h := range got {
		sum += h.Seconds
	}
	if diff := cmp.Diff(12.0, sum, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("the sum (-want +got):\n%s", diff)
	}
}

func TestSpread(t *testing.T) {
	var twenty []float64
	for i := range 20 {
		twenty = append(twenty, float64(20-i))
	}
	for name, c := range map[string]struct {
		all  []float64
		want Spread
	}{
		"none":   {nil, Spread{Name: "total"}},
		"one":    {[]float64{3}, Spread{"total", 1, 3, 3, 3}},
		"three":  {[]float64{3, 1, 2}, Spread{"total", 3, 2, 3, 3}},
		"twenty": {twenty, Spread{"total", 20, 10.5, 18, 20}},
	} {
		if diff := cmp.Diff(c.want, spreadOf("total", c.all)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestSeries: a run that failed is in no median, and no series with one meets its target.
func TestSeries(t *testing.T) {
	good := RecoveryRun{Seconds: 12, Hops: []Hop{{"suspected", 9}, {"written", 3}}}
	late := RecoveryRun{Seconds: 14, Hops: []Hop{{"suspected", 9}, {"switched off", 1}, {"written", 4}}}
	lost := RecoveryRun{From: "node-2", Seconds: 1, Failure: "of 7 acknowledged records 6 are in place"}
	limit := 15 * time.Second
	for name, c := range map[string]struct {
		runs     []RecoveryRun
		limit    time.Duration
		met      bool
		failures int
	}{
		"all good":   {[]RecoveryRun{good, late}, limit, true, 0},
		"too late":   {[]RecoveryRun{good, late}, 12 * time.Second, false, 0},
		"one failed": {[]RecoveryRun{good, lost, late}, limit, false, 1},
		"none":       {nil, limit, false, 0},
	} {
		s := &RecoverySeries{Nodes: "belay", Profile: "fast", Plane: "belay", Fault: "power cut", Runs: c.runs}
		s.summarize(c.limit)
		if s.Target.Met != c.met || s.Failures != c.failures || s.Total.Of != len(c.runs)-c.failures {
			t.Errorf("%s: %+v, target %+v", name, s, s.Target)
		}
		var out strings.Builder
		if err := s.write(&out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "pass") != c.met || strings.Contains(out.String(), lost.Failure) != (c.failures > 0) {
			t.Errorf("%s:\n%s", name, out.String())
		}
	}
	s := &RecoverySeries{Runs: []RecoveryRun{good, late}}
	s.summarize(0)
	want := []Spread{{"suspected", 2, 9, 9, 9}, {"written", 2, 3.5, 4, 4}, {"switched off", 1, 1, 1, 1}}
	if diff := cmp.Diff(want, s.Hops); diff != "" || s.Target != nil {
		t.Errorf("target %+v, hops (-want +got):\n%s", s.Target, diff)
	}
}
