package attacher

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// refusePatches has the API server refuse patches of one VolumeAttachment, or of none.
func (b *bubble) refusePatches(name string) {
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	b.api.refuse = func(r *http.Request) error {
		if name != "" && r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/"+name) {
			return errors.New("away")
		}
		return nil
	}
}

// Two Nodes have one CSI node ID. The first one that is detached is released without an unpublish, because the other one is to unpublish, and the API
// server does not take that write. Then another client removes the other one with its finalizer. S5: the first one still has its own, nothing was
// unpublished, and nothing else stands for what is published, so it has to unpublish. That its release was tried is no confirmation of the driver's.
func TestReleaseThatWasNotWrittenConfirmsNothing(t *testing.T) {
	for name, before := range map[string]bool{"attached by this process": false, "attached by an earlier process": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.onOneID("a", "b")
				b.volume("vol", corev1.ReadWriteMany)
				for _, node := range []string{"a", "b"} {
					if before {
						b.attach("vol", node, worked, attached, recordedAs("id-one"))
					} else {
						b.attach("vol", node)
					}
				}
				b.within(time.Second, "both attached", func() bool { return b.isAttached("vol", "a") && b.isAttached("vol", "b") })
				b.refusePatches(bubbleName("vol", "a"))
				b.detach("vol", "a")
				b.pass(time.Second)
				b.end("vol", "b")
				b.pass(time.Second)
				b.refusePatches("")
				b.within(10*time.Minute, "gone", func() bool { return b.isGone("vol", "a") })
				if got := b.received("vol"); len(got) == 0 || got[len(got)-1] != "Unpublish id-one" {
					t.Errorf("S5: the last finalizer of the place is off without an unpublish: calls %v", got)
				}
			})
		})
	}
}
