package timeline

import (
	"testing"
	"time"
)

func TestAHopDoesNotTakeTheWholeMoveBecauseItsCauseWasSeenLate(t *testing.T) {
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
			m := &Move{Hops: []Hop{{Name: HopPrepared, Seen: true, Ended: tt.cause}}}
			hop := Hop{Name: HopCtrlPublish, Seen: true, Calls: tt.calls, Worked: tt.worked, Ended: tt.ended}
			m.begin(&hop, []HopName{HopPrepared})
			if got := hop.Took(); got != tt.want {
				t.Errorf("Took() = %v, want %v", got, tt.want)
			}
		})
	}
}
