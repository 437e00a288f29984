package explain

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/attachment"
)

// TestNoTaintBesideRecovery: an event asks a person to declare a node out of service only where recovery does not do that.
func TestNoTaintBesideRecovery(t *testing.T) {
	from := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]attachment.Cause{
		"pods are there": {}, "pods are there, and a timer": {Forces: attachment.UnmountTimeout{}}, "in use": {Reason: attachment.StillInUse, Since: from},
		"returned": {Reason: attachment.NodeReturned, Since: from}, "an attach fails": {Reason: attachment.AttachFailed, Since: from, Detail: "broken"},
	} {
		for does, want := range map[attachment.Recovery]string{
			"": "node.kubernetes.io/out-of-service", attachment.FenceUnderWay: "and recovery is fencing it: once its machine is proven off",
			attachment.FenceExpected: "and recovery fences it: the volume is ",
		} {
			c.Recovery = does
			text := Blockers("disk.example", []attachment.Blocker{{Node: "node-1", Kind: attachment.ByAttachment, Ready: attachment.No, Cause: c}})
			if !strings.Contains(text, want) || does != "" && strings.Contains(text, "out-of-service") {
				t.Errorf("%s, %q: %s", name, does, text)
			}
		}
	}
}
