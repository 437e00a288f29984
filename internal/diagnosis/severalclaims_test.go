package diagnosis

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// withShared gives the waiter, before its own, a claim of another driver that many pods may use, and returns a pod that runs with it.
func (s scene) withShared() *corev1.Pod {
	pv, claim := s.Volumes[0].DeepCopy(), s.Claims[0].DeepCopy()
	pv.Name, pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, pv.Spec.ClaimRef.Name = "pv-shared", "nfs.example.com", "h2", "shared"
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	claim.Name, claim.Spec.VolumeName, claim.Spec.AccessModes = "shared", pv.Name, pv.Spec.AccessModes
	s.Snapshot.Volumes, s.Snapshot.Claims = append(s.Volumes, pv), append(s.Claims, claim)
	shared := corev1.Volume{Name: "shared", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shared"}}}
	s.waiter.Spec.Volumes = append([]corev1.Volume{shared}, s.waiter.Spec.Volumes...)
	web := s.holder.DeepCopy()
	web.Name, web.UID, web.Spec.Volumes = "web", "web", []corev1.Volume{shared}
	s.Snapshot.Pods = append(s.Pods, web)
	return web
}

// TestClaimForOnePodBesideAShared: the claim that only one pod may use is named, with the pod that uses it, and not another claim of the pod with a pod that may
// use that: one of the steps deletes the pod.
func TestClaimForOnePodBesideAShared(t *testing.T) {
	s := newScene()
	s.withShared()
	s.Volumes[0].Spec.AccessModes[0] = corev1.ReadWriteOncePod
	s.unscheduled("0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod.")
	e := explained(t, s, theWaiter)
	if e.Reason != explain.ReadWriteOncePodInUse || !strings.Contains(e.Summary, "the claim claim has") || !strings.Contains(e.Summary, "pod holder uses it") {
		t.Errorf("%s: %s", e.Reason, e.Summary)
	}
	for _, step := range e.Findings[0].Next {
		if strings.Contains(step.Command, "web") {
			t.Errorf("a step about a pod that shares another claim: %+v", step)
		}
	}
}
