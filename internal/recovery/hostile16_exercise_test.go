package recovery

import (
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
)

// The switches of other nodes hang, whose nodes live: an exercise of each takes 12 s. The switch of a node that has fallen silent is the second signal
// without which it is not suspected (NoSecondSignal), and waits for the same places, in no order: a fence begins late, or never.
func TestHostileSwitchOfASilentNodeIsAskedBeforeOthers(t *testing.T) {
	f, bmc, source, _ := commanded(t)
	bmc.power = fencing.PowerOff // it has lost its power
	if silent, limit, heard := f.ear.of("n1"); !heard || silent < limit {
		t.Fatalf("n1 is silent for %v of %v", silent, limit)
	}
	for range cap(f.exercises) {
		f.exercises <- struct{}{} // exercises of nodes that live
	}
	for range 30 {
		if _, err := f.exercise(t.Context(), f.state("n1"), source); err != nil {
			t.Fatal(err)
		}
		clock := f.now().Add(lookEvery)
		f.now = func() time.Time { return clock }
	}
	if asked, _ := bmc.count(); asked == 0 {
		t.Error("n1 is silent for an hour, and its switch was not asked in a minute: no second signal")
	}
}
