package fencing

import (
	"fmt"
	"testing"
	"time"
)

// A fence without a power switch takes volumes one by one, where a driver cuts the node off (StorageProven). It commands nothing, so that no brake counts
// it any more: while a network is parted, the detector takes the volumes of as many nodes at once as may be silent, and not of two at a time and five in
// ten minutes.
func TestHostileFencesThatTakeVolumesAreBraked(t *testing.T) {
	f := fleet(1, 100, noZone)
	f.Commanded = map[string]time.Time{}
	for i := range 30 {
		name := fmt.Sprint("cut-", i)
		f.Commanded[name] = start // as the detector counts one with StorageProven
		f.Fenced[name] = true
	}
	if s := Suspect(start, Default, DefaultBrakes(), f.Count(), f.Nodes[0]); s.Suspected {
		t.Errorf("the volumes of 30 nodes are being taken, and the next fence begins: %+v", s)
	}
}
