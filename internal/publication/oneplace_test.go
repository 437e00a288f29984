package publication

import (
	"slices"
	"testing"
	"time"
)

// Two Nodes have one CSI node ID, and csi-attacher had stored the finalizers of two attachments of an exclusive volume before belay-attacher took
// over; neither was ever attached. They wait for each other. What unpublishes the younger one (waitForHolder) must do so for one place, too: the
// older one's need of a place where nothing is confirmed is no reason to wait forever. It did until the places (73870211: unpublish, publish).
func TestExclusiveVolumeOfTwoNodesWithOneNodeIDEndsTheDeadlock(t *testing.T) {
	a, b := at(begun("a"), "id"), at(begun("b"), "id")
	a.Created = noon.Add(-time.Hour)
	for range 3 {
		d := Decide(noon, Observed{Exclusive: true, Attachments: []Attachment{a, b}}, policy)
		for _, step := range d.Steps {
			switch s := step.(type) {
			case RecordError:
				if s.UID == a.UID {
					a.AttachError = s.Message
				} else {
					b.AttachError = s.Message
				}
			default:
				return // something is done
			}
		}
		if len(d.Steps) == 0 {
			waits := func(w Wait) bool { return w.Reason == OtherWriterAttached && w.Until.IsZero() }
			if !slices.ContainsFunc(d.Waits, func(w Wait) bool { return !waits(w) }) {
				t.Fatalf("each waits for the other, for ever: %+v", d.Waits)
			}
			return
		}
	}
}
