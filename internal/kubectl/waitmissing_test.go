package kubectl

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// TestWaitDetachedFromNoNode: a name that no Node has is more likely wrong than detached, and what follows is a reboot. A
// VolumeAttachment shows that there was such a node.
func TestWaitDetachedFromNoNode(t *testing.T) {
	server.Start(t)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	if got := run(t, kubeconfig, "wait-detached", "node/mistyped", "--timeout=2m"); got.status != StatusError || !strings.Contains(got.err, "nodes/mistyped does not exist") || got.out != "" {
		t.Errorf("exit status %d: %s%s", got.status, got.out, got.err)
	}
	va := fixture.Attachment("left-behind", driver, "deleted", "gone")
	create(t, va)
	if got := run(t, kubeconfig, "wait-detached", "node/deleted", "--timeout=7s"); got.status != StatusBlocked {
		t.Errorf("with a VolumeAttachment, exit status %d: %s%s", got.status, got.out, got.err)
	}
}
