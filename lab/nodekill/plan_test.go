package nodekill

import (
	"slices"
	"testing"
)

func TestPlansOfARoundMeetEveryMoment(t *testing.T) {
	plans := Plans(7, 30)
	if !slices.Equal(plans, Plans(7, 30)) {
		t.Error("the same seed made other plans")
	}
	met := Histogram{}
	for _, p := range plans {
		met.Add(p.Method, p.Moment)
	}
	if missed := met.Missed(); len(missed) > 0 {
		t.Errorf("missed: %v", missed)
	}
	if missed := (Histogram{}).Missed(); len(missed) != len(methods())*(len(moments())-1) {
		t.Errorf("of nothing missed: %v", missed)
	}
	if !plans[len(plans)-1].Settle {
		t.Error("the last kill is not checked")
	}
}
