package attacher

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Two Nodes have one CSI node ID, and csi-attacher, which belay-attacher replaces during an outage of the driver, had stored the finalizers of two
// attachments of an exclusive volume: it compares no attachments, stores finalizer and node ID, and calls the driver (external-attacher v4.11.0
// pkg/controller/csi_handler.go:514-528 csiAttach). Neither is attached. Liveness: when faults stop, one of them is. With two node IDs the younger one is
// unpublished (waitForHolder); so it was with one, until the places (73870211).
func TestTakeOverOfTwoBegunAttachmentsOfOneNodeID(t *testing.T) {
	for name, ids := range map[string][2]string{"two node IDs": {"id-a", "id-b"}, "one node ID": {"id-one", "id-one"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.node("a", ids[0])
				b.node("b", ids[1])
				b.volume("vol", corev1.ReadWriteOnce)
				b.attach("vol", "a", worked, recordedAs(ids[0]))
				b.pass(2 * time.Second)
				b.attach("vol", "b", worked, recordedAs(ids[1]))
				defer b.start()()
				b.within(time.Hour, "attached to one of them", func() bool { return b.isAttached("vol", "a") || b.isAttached("vol", "b") })
				t.Logf("calls: %v", b.received("vol"))
			})
		})
	}
}
