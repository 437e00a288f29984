package attachdetach

import (
	"testing"

	"belay.dev/belay/internal/kube"
)

// When the cache of Nodes lags behind the cache of VolumeAttachments, a standby mistakes each
// ordinary detach for an attachment that another client removed. It must forget that entry,
// also after a forced detach from a node that still lists the volume.
func TestStandbyForgetsEachDetach(t *testing.T) {
	for name, inUse := range map[string]bool{"idle": false, "by force": true} {
		t.Run(name, func(t *testing.T) {
			m, k := newModel(t), key{Driver: driver, Handle: "h"}
			m.put(aVolume("pv", k.Handle))
			unique := kube.UniqueVolumeName(k.Driver, k.Handle)
			var used []string
			if inUse {
				used = append(used, unique)
			}
			m.put(aNode("a", isReady, listing(used, []string{unique})))
			m.put(sharedAttachment(k, "a"))
			m.remove(sharedAttachment(k, "a"))             // the leader withdrew and deleted; the watch of Nodes is behind
			m.put(aNode("a", isReady, listing(used, nil))) // it catches up
			if !inUse && m.ledger.has(unique, "a") {
				t.Error("the ledger keeps a volume that was detached in order")
			}
			if m.adopt(false); m.ledger.has(unique, "a") {
				t.Error("the new leader takes the volume for one that the node was given")
			}
		})
	}
}
