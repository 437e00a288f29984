package timeline

import (
	"testing"
	"time"
)

func TestStepWithLateCauseKeepsItsOwnTime(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		cause, worked, ended time.Duration
		calls                int
		want                 time.Duration
	}{
		"cause seen first":                        {cause: 100 * ms, worked: 102 * ms, ended: 110 * ms, calls: 1, want: 10 * ms},
		"cause seen after the call began":         {cause: 105 * ms, worked: 102 * ms, ended: 110 * ms, calls: 1, want: 8 * ms},
		"cause seen after the call ended":         {cause: 115 * ms, worked: 102 * ms, ended: 110 * ms, calls: 1, want: 8 * ms},
		"watches out of step, no call":            {cause: 115 * ms, ended: 110 * ms, want: 0},
		"done long before: did not wait for that": {cause: 900 * ms, ended: 110 * ms, want: 110 * ms},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := &Move{Steps: []Step{{Name: StepPrepared, Seen: true, Ended: tt.cause}}}
			step := Step{Name: StepCtrlPublish, Seen: true, Calls: tt.calls, Worked: tt.worked, Ended: tt.ended}
			m.begin(&step, []StepName{StepPrepared})
			if got := step.Took(); got != tt.want {
				t.Errorf("Took() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestHandoverCountsFromLaterOfReleaseAndBinding(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct{ outOfUse, bound, want time.Duration }{
		"the next pod waits for the old node":     {outOfUse: 300 * ms, bound: 100 * ms, want: 50 * ms},
		"the old node let go before it was bound": {outOfUse: 100 * ms, bound: 320 * ms, want: 30 * ms},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := &Move{Steps: []Step{
				{Name: StepOutOfUse, Seen: true, Ended: tt.outOfUse},
				{Name: StepBound, Seen: true, Ended: tt.bound},
				{Name: StepReported, Seen: true, Ended: 350 * ms},
			}}
			if got, ok := m.Figure(FigureInUseReported); !ok || got != tt.want {
				t.Errorf("Figure() = %v, %v, want %v", got, ok, tt.want)
			}
		})
	}
}
