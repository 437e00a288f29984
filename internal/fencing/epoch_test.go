package fencing

import (
	"math"
	"testing"
	"time"
)

// TestNextEpoch (hole 13): the number is higher than every one before, and what a node writes about itself moves it by a day at most.
func TestNextEpoch(t *testing.T) {
	now, day := start.Unix(), int64(EpochAhead/time.Second)
	for name, c := range map[string]struct{ recorded, shown, want int64 }{
		"the first":                      {0, 0, now},
		"after a long time":              {now - 100, now - 100, now},
		"in the second of the last one":  {now, now, now + 1},
		"on a clock that was set back":   {now + 2*day, now + 2*day, now + 2*day + 1},
		"the record is gone":             {0, now + 7, now + 8},
		"a day ahead":                    {0, now + day, now + day + 1},
		"more than a day ahead":          {0, now + day + 1, now},
		"more than a day, and a record":  {now + 3, now + day + 1, now + 4},
		"the largest number":             {0, math.MaxInt64, now},
		"the largest, and a record":      {now + 3, math.MaxInt64, now + 4},
		"the smallest number":            {0, math.MinInt64, now},
		"a record higher than it shows":  {now + 9, now + 3, now + 10},
		"it shows more than the record":  {now + 3, now + 9, now + 10},
		"it shows less than zero":        {now + 3, -1, now + 4},
		"the clock says less than both ": {now + 3, now + 3, now + 4},
	} {
		if got := NextEpoch(start, c.recorded, c.shown); got != c.want {
			t.Errorf("%s: %d, want %d", name, got-now, c.want-now)
		}
	}
}
