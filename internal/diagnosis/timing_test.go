package diagnosis

import (
	"testing"
	"time"
)

// TestWaitForThePreviousNode has a row of its own, and is not blamed on the controller.
func TestWaitForThePreviousNode(t *testing.T) {
	at := func(seconds int) *time.Time { return new(time.Unix(int64(1000+seconds), 0)) }
	done := func(name HopName, seconds int) Hop { return Hop{Name: name, State: HopDone, At: at(seconds)} }
	row := func(rows []Interval, name string) *Interval {
		for i := range rows {
			if rows[i].Name == name {
				return &rows[i]
			}
		}
		return nil
	}
	const release, create = "of that, after the new pod had its node", "controller creates the VolumeAttachment"
	rest := []Hop{done(HopPodCreated, 0), done(HopScheduled, 1), done(HopAttachRequested, 420), done(HopTaken, 421)}
	known := timing(append([]Hop{done(HopDetached, 419)}, rest...), *at(430))
	if r, c := row(known, release), row(known, create); r == nil || r.Seconds == nil || *r.Seconds != 418 || *c.Seconds != 1 {
		t.Errorf("known: %+v, %+v", r, c)
	}
	gone := timing(append([]Hop{{Name: HopDetached, State: HopUnknown, NotAfter: at(420)}}, rest...), *at(430))
	if r, c := row(gone, release), row(gone, create); r == nil || r.AtMost == nil || *r.AtMost < 419 || c.Seconds != nil || c.Unknown == "" {
		t.Errorf("unknown: %+v, %+v", r, c)
	}
	if r := row(timing(append([]Hop{done(HopDetached, 0)}, rest...), *at(430)), release); r != nil {
		t.Errorf("no wait: %+v", r)
	}
}
