package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// TestControllerHasGrownIt: once the volume is larger at the storage, what the resizer reported before is over, and kubelet's part is what is left.
func TestControllerHasGrownIt(t *testing.T) {
	s := newScene()
	step(s.grows(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimFileSystemResizePending}), corev1.PersistentVolumeClaimNodeResizePending)
	s.ofClaim("external-resizer disk.example.com", corev1.EventTypeNormal, "FileSystemResizeRequired", "Require file system resize of volume on node", 30*time.Minute)
	s.ofClaim("external-resizer disk.example.com", corev1.EventTypeWarning, explain.VolumeResizeFailed, `resize volume "pv" by resizer failed: rpc error: code = Internal desc = quota exceeded`, 40*time.Minute)
	if e := explained(t, s, theClaim); e.Reason != explain.ResizePending {
		t.Errorf("%s: %s", e.Reason, e.Summary)
	}
	s.ofClaim("kubelet", corev1.EventTypeWarning, explain.FileSystemResizeFailed, `NodeExpandVolume failed: resize2fs: no space`, time.Minute)
	if e := explained(t, s, theClaim); e.Reason != explain.ResizeFailed {
		t.Errorf("kubelet cannot grow the file system: %s: %s", e.Reason, e.Summary)
	}
}
