package explain

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// A Fibre Channel or iSCSI volume has no VolumeAttachment: a person who waits for one is told
// to delete what does not exist (docs/invariants.md: only a restart of belay-controller ends
// that wait).
func TestAdviceForAVolumeWithoutAttachment(t *testing.T) {
	for _, reason := range []attachment.Reason{attachment.NodeGone, attachment.NodeReplaced} {
		text := Wait(kube.FibreChannelPlugin, "a", attachment.Cause{Reason: reason}, attachment.Unknown)
		if strings.Contains(text, "VolumeAttachment") {
			t.Errorf("%s: %s", reason, text)
		}
	}
}
