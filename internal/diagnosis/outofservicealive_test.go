package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestOutOfServiceAndAlive: volumes are detached by force from a node that has the out-of-service taint and is not Ready, whatever its machine does. One whose
// kubelet still answers is not shut down: it may write while another node mounts the volume, and the pods show that as the node does.
func TestOutOfServiceAndAlive(t *testing.T) {
	for name, ready := range map[string]corev1.ConditionStatus{"its kubelet says that it is not Ready": corev1.ConditionFalse, "its kubelet renews its lease": corev1.ConditionUnknown} {
		t.Run(name, func(t *testing.T) {
			for _, about := range []Ref{nodeA, theWaiter, theHolder} {
				s := newScene()
				s.outOfService(ready)
				s.heartbeat(2 * time.Second)
				if e := explained(t, s, about); e.Verdict != Unsafe {
					t.Errorf("%s: %s %s: %s", about, e.Verdict, e.Reason, e.Summary)
				}
			}
			s := newScene()
			s.outOfService(ready)
			s.heartbeat(2 * time.Second)
			if list := Stuck(s.Snapshot, "", 0); list.Verdict != Unsafe {
				t.Errorf("stuck: %s, %d items", list.Verdict, len(list.Items))
			}
			s.ending(time.Minute)
			if e := explained(t, s, theHolder); e.Verdict != Unsafe {
				t.Errorf("the holder is being deleted: %s %s: %s", e.Verdict, e.Reason, e.Summary)
			}
		})
	}
}
