package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestVolumeNamedAsAnother: kubelet and the controller call a volume that has a PersistentVolume by its name. The pod may call another of its volumes so: what
// they say is not about that one, whose data is well.
func TestVolumeNamedAsAnother(t *testing.T) {
	for reason, text := range map[string]string{
		"FailedMount":        `MountVolume.MountDevice failed for volume "v" : rpc error: code = NotFound desc = volume h2 not found`,
		"FailedAttachVolume": `AttachVolume.Attach failed for volume "v" : rpc error: code = NotFound desc = volume h2 not found`,
	} {
		s := newScene()
		s.mounts()
		s.withShared() // the pod calls its own "v", and the other one is PersistentVolume "v"
		pv, claim := s.Volumes[1], s.Claims[1]
		pv.Name, claim.Spec.VolumeName, pv.Spec.CSI.Driver = "v", "v", oneDriver
		unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(oneDriver, "h2"))
		b := &s.Nodes[1].Status
		b.VolumesAttached, b.VolumesInUse = append(b.VolumesAttached, corev1.AttachedVolume{Name: unique}), append(b.VolumesInUse, unique)
		va := s.va.DeepCopy()
		va.Name, va.Spec.Source.PersistentVolumeName = kube.AttachmentName("h2", oneDriver, "b"), new("v")
		s.Snapshot.Attachments = append(s.Attachments, va)
		s.says("", "Pod", reason, text, time.Second)
		if reason == "FailedAttachVolume" { // few rights: the events are all that is known
			s.Snapshot.Attachments, s.Snapshot.Volumes, s.Events[0].Source.Component = nil, nil, "attachdetach-controller"
			s.Snapshot.Nodes, s.Snapshot.Whole = nil, []Resource{Pods}
		}
		e := explained(t, s, theWaiter)
		if e.Reason != explain.HandleNotFound {
			t.Errorf("%s: %s: %s", reason, e.Reason, e.Summary)
		}
		for i := range e.Findings {
			if f := &e.Findings[i]; f.Volume != nil && f.Volume.Name == "v" && f.Reason == explain.HandleNotFound || strings.Contains(f.Summary, "PersistentVolume pv:") {
				t.Errorf("%s: of a volume that is well: %s: %s", reason, f.Reason, f.Summary)
			}
		}
	}
}
