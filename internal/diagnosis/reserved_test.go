package diagnosis

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// TestReservedVolume: a PersistentVolume whose claimRef has no UID was never bound to that claim: it is kept for one that is to come, with the data that is meant
// for it. It is not "deleted", and no step hands the volume to another claim.
func TestReservedVolume(t *testing.T) {
	s := newScene()
	s.Pods, s.Claims[0].Status.Phase = nil, corev1.ClaimPending
	s.Volumes[0].Spec.ClaimRef, s.Volumes[0].Status.Phase = &corev1.ObjectReference{Namespace: "ns", Name: "data-db-1"}, corev1.VolumeAvailable
	e := explained(t, s, theClaim)
	if e.Reason != explain.VolumeMismatch || strings.Contains(e.Summary, "deleted") || !strings.Contains(e.Summary, "ns/data-db-1") {
		t.Errorf("%s: %s", e.Reason, e.Summary)
	}
	for _, step := range e.Findings[0].Next {
		if strings.Contains(step.Command, "claimRef") {
			t.Errorf("the volume of another claim is given away: %+v", step)
		}
	}
}
