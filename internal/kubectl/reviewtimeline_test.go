package kubectl

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/diagnosis"
)

// TestAtLeastNothing: "at least" is followed by what the wait has lasted at least.
func TestAtLeastNothing(t *testing.T) {
	zero, long, longer := 0.0, 4000.0, 12345.0
	for name, tc := range map[string]struct{ got, bad string }{
		"so far":       {intervalText(&diagnosis.Interval{SoFar: &zero, AtLeast: &zero}), "at least <1 s"},
		"range":        {intervalText(&diagnosis.Interval{AtLeast: &long, AtMost: &longer}), "e+0"},
		"at most":      {intervalText(&diagnosis.Interval{AtMost: &longer}), "e+0"},
		"least = most": {intervalText(&diagnosis.Interval{AtLeast: &longer, AtMost: &long}), "unknown, 1.23e+04 to 4e+03 s"},
	} {
		if strings.Contains(tc.got, tc.bad) {
			t.Errorf("%s: %q", name, tc.got)
		}
	}
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	m := &diagnosis.Move{
		Volume: &diagnosis.Volume{PersistentVolume: "pv-1"}, Start: &now, End: &now, StartedBefore: true,
		Hops: []diagnosis.Hop{{Name: diagnosis.HopPodDeleted, State: diagnosis.HopWaiting, Seconds: &zero, AtLeast: true, After: diagnosis.HopScheduled, Why: "a pod there may still use the volume"}},
	}
	p := &page{}
	p.move(m)
	if text := p.text.String(); strings.Contains(text, ">1 s") || strings.Contains(text, "at least <1 s") {
		t.Errorf("a wait of less than a second:\n%s", text)
	}
}
