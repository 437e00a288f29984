package attacher

import (
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// S1: a volume is identified, or becomes exclusive, after the key of its attachment was queued. That key stands for the
// attachment alone: a decision under it does not see the node that has the volume.
func TestOutdatedKeyStartsNoCall(t *testing.T) {
	for name, outdated := range map[string]publication.Key{
		"volume was identified":   {Attachment: bubbleName("v", "node-b")},
		"volume became exclusive": {Volume: "v", NodeID: "id-node-b"},
		"and the node had no ID":  {Volume: "v", Node: "node-b"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.attach("v", "node-a")
				b.within(time.Second, "attached", func() bool { return b.isAttached("v", "node-a") })
				b.attach("v", "node-b", worked, func(va *storagev1.VolumeAttachment) { va.Annotations[kube.PublishedHandleAnnotation] = "v" })
				b.pass(time.Second)
				a := b.attacher
				a.decideExclusively(outdated, func() {
					if queue, err := a.reconcile(b.t.Context(), outdated, func() {}); queue != nil || err != nil {
						t.Errorf("S1: a call is queued (%v), error %v", queue, err)
					}
				})
				a.decideExclusively(outdated, func() {
					if send, _ := a.prepareCall(b.t.Context(), a.regularCalls, outdated); send != nil {
						t.Error("S1: a call begins")
					}
				})
				b.detach("v", "node-a")
				b.within(2*time.Second, "attached to the next node", func() bool { return b.isAttached("v", "node-b") })
			})
		})
	}
}
