package attachment

import "testing"

// kube-controller-manager records no machine. belay-controller adds it once the node has vouched for the volume (docs/not-guaranteed.md, item 8): the
// Node object is the one under which the volume was attached, it is reported, and its kubelet lists it in use. Without the record, nothing that
// rests on it holds for what was attached before the migration, for as long as it stays attached. An attachment of belay's own has it.
func TestMachineOfAnAttachmentOfUpstreamIsRecorded(t *testing.T) {
	for name, a := range map[string]Attachment{"belay's": attached("a"), "upstream's": attached("a", byUpstream)} {
		t.Run(name, func(t *testing.T) {
			vouches := node("a", reported, inUse, healthy)
			d := Decide(t0, wantAt("a"), onA(a, vouches), policy)
			if got := recorded(a, d.Steps).Machine; got.SystemUUID != vouches.Machine.SystemUUID || got.BootID != vouches.Machine.BootID {
				t.Errorf("not recorded by %v: %+v, want %+v", d.Steps, got, vouches.Machine)
			}
		})
	}
}
