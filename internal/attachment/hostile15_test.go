package attachment

import (
	"testing"

	"belay.dev/belay/internal/fencing"
)

// A volume was taken from boot a by the proof that its driver cuts, and went to b and was released there. A pod that tolerates every taint (many
// operators' and agents' pods do), or that names its node, wants it on a again, which is cut off or just back: the same boot, which still lists the volume in use from before.
// The isolation, a NoSchedule taint, is all that keeps the volume away (ADR 24: "Otherwise the volume could come back to the boot whose old mount
// still holds unwritten data"), and such a pod does not see it. The publish ends the cut, and the old mount writes its dirty pages over what b wrote.
// Expected: no attach to a boot that is proven to be cut off, nor to one that still lists the volume in use after it was taken from it.
func TestHostileNoAttachToTheBootThatWasCutOff(t *testing.T) {
	own := VolumeKey{Driver: "disk.example.com", Handle: "vol-1"}
	a := node("a", checked, inUse, unhealthy, cuts(t0, fencing.Volume(own)))
	seen := Observed{Volume: own, Nodes: nodes(map[NodeName]Node{"a": a, "b": node("b", healthy)})}
	if len(a.Proofs) != 1 || a.Proofs[0].Class() != fencing.StorageFenced {
		t.Fatal("no proof")
	}
	for _, step := range Decide(t0, wantAt("a"), seen, Policy{}).Steps {
		if s, ok := step.(Attach); ok {
			t.Errorf("%#v to a boot for which the proof StorageFenced holds, and which lists the volume in use", s)
		}
	}
}
