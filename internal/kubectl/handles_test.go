package kubectl

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// TestHolderThroughAnotherVolume: two PersistentVolumes may have one handle. The node that has the volume through the other one is read
// and named.
func TestHolderThroughAnotherVolume(t *testing.T) {
	server.Start(t)
	namespaces(t, "handles")
	create(t, node("handle-near"))
	create(t, node("handle-far", "one-handle"))
	pv := fixture.PersistentVolume("handle-first", driver, "one-handle")
	claim := fixture.Claim("handles", "first", pv)
	create(t, claim)
	create(t, fixture.Bind(pv, claim))
	create(t, fixture.PersistentVolume("handle-second", driver, "one-handle"))
	va := fixture.Attachment(kube.AttachmentName("one-handle", driver, "handle-far"), driver, "handle-far", "handle-second")
	va.Status.Attached, va.Status.DetachError = true, nil
	create(t, va)
	create(t, fixture.Pod("handles", "waiter", "handle-near", "first"))
	got := run(t, apiserver.Kubeconfig(t, server.Config()), "explain", "pod/waiter", "-n", "handles", "-o", "wide")
	if !strings.Contains(got.out, "node handle-far is Ready") || strings.Contains(got.out, "could not be read") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}
