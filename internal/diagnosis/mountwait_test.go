package diagnosis

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// mounts makes the waiter's volume attached to its node, where kubelet mounts it.
func (s scene) mounts() {
	s.va.Name, s.va.Spec.NodeName = kube.AttachmentName("h", oneDriver, "b"), "b"
	s.Nodes[1].Status.VolumesAttached, s.Nodes[1].Status.VolumesInUse = s.a.Status.VolumesAttached, s.a.Status.VolumesInUse
	s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
	s.Pods = []*corev1.Pod{s.waiter}
	s.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: oneDriver}}}}}
	s.waiter.CreationTimestamp = metav1.NewTime(s.Now.Add(-time.Minute))
}

// says adds an event of an object.
func (s scene) says(uid, kind, reason, message string, ago time.Duration) {
	e := &corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "waiter"}, Reason: reason, Message: message, Type: corev1.EventTypeWarning, LastTimestamp: metav1.NewTime(s.Now.Add(-ago))}
	e.InvolvedObject.Kind, e.Source.Component = kind, "kubelet"
	e.InvolvedObject.UID = s.waiter.UID
	if uid != "" {
		e.InvolvedObject.UID = s.Claims[0].UID
		e.Type = corev1.EventTypeNormal
	}
	s.Events = append(s.Events, e)
}

// TestMountEventsOfOthers: an event about another volume of the pod, or about an attach that has succeeded since, is no cause.
func TestMountEventsOfOthers(t *testing.T) {
	for name, one := range map[string]struct {
		reason, message string
		want            decision.Reason
		detail          bool
	}{
		"this volume":                               {"FailedMount", `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = bad superblock`, explain.MountFailing, true},
		"this volume, secret":                       {"FailedMount", `MountVolume.MountDevice failed for volume "pv" : fetching NodeStageSecretRef ns/s failed: failed to find the secret s in the namespace ns: secrets "s" not found`, explain.SecretMissing, false},
		"the pod's own secret":                      {"FailedMount", `MountVolume.SetUp failed for volume "tls" : secret "db-tls" not found`, explain.VolumeSourceMissing, false},
		"an attach that failed before it succeeded": {"FailedAttachVolume", `AttachVolume.Attach failed for volume "pv" : rpc error: code = Unavailable desc = down`, explain.Mounting, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.mounts()
			s.says("", "Pod", one.reason, one.message, 10*time.Second)
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != one.want || one.detail != strings.Contains(e.Summary, one.message[strings.Index(one.message, " : ")+3:]) {
				t.Errorf("%s: %s (%v), want %s", e.Reason, e.Summary, err, one.want)
			}
		})
	}
	s := newScene()
	s.mounts()
	second := s.Volumes[0].DeepCopy()
	second.Name, second.Spec.CSI.VolumeHandle, second.Spec.ClaimRef.Name = "other", "h2", "other"
	s.Volumes = append(s.Volumes, second)
	s.Claims = append(s.Claims, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "other"}})
	s.waiter.Spec.Volumes = append(s.waiter.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "other"},
	}})
	va := s.va.DeepCopy()
	va.Name, va.Spec.Source.PersistentVolumeName = kube.AttachmentName("h2", oneDriver, "b"), new("other")
	s.Attachments = append(s.Attachments, va)
	s.Nodes[1].Status.VolumesAttached = append(s.Nodes[1].Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(kube.UniqueVolumeName(oneDriver, "h2"))})
	s.says("", "Pod", "FailedMount", `MountVolume.SetUp failed for volume "other" : rpc error: code = Internal desc = broken`, 10*time.Second)
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range e.Findings {
		if failing := f.Reason == explain.MountFailing; failing != (f.Volume.PersistentVolume == "other") {
			t.Errorf("volume %s: %s (%s)", f.Volume.PersistentVolume, f.Reason, f.Summary)
		}
	}
}

// TestClaimWaitsForItsConsumer: a claim that waits for its first consumer is not what its pod waits for: the pod waits for a node. Without
// a pod, nothing waits.
func TestClaimWaitsForItsConsumer(t *testing.T) {
	make := func() scene {
		s := newScene()
		s.Attachments, s.Volumes, s.Pods = nil, nil, []*corev1.Pod{s.waiter}
		s.Claims[0].Spec.VolumeName, s.Claims[0].UID = "", "claim"
		s.Claims[0].CreationTimestamp = metav1.NewTime(s.Now.Add(-time.Hour))
		s.waiter.Spec.NodeName = ""
		s.waiter.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu.", LastTransitionTime: metav1.NewTime(s.Now.Add(-time.Hour)),
		}}
		s.says("claim", "PersistentVolumeClaim", "WaitForFirstConsumer", "waiting for first consumer to be created before binding", 10*time.Second)
		return s
	}
	s := make()
	for _, subject := range []Ref{{Pods, "ns", "waiter"}, {Claims, "ns", "claim"}} {
		if e, err := Explain(s.Snapshot, subject); err != nil || e.Reason != explain.PodUnschedulable || !strings.Contains(e.Summary, "Insufficient cpu") {
			t.Errorf("%s: %s: %s (%v), want what the scheduler says", subject, e.Reason, e.Summary, err)
		}
	}
	s.Pods = nil
	if e, err := Explain(s.Snapshot, Ref{Claims, "ns", "claim"}); err != nil || e.Verdict != Clear {
		t.Errorf("without a pod: %s %s: %s (%v)", e.Verdict, e.Reason, e.Summary, err)
	}
	s = make()
	s.says("claim", "PersistentVolumeClaim", "ProvisioningFailed", "no space", time.Second)
	s.Events[1].Type = corev1.EventTypeWarning
	if e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"}); err != nil || e.Reason != explain.ClaimNotBound {
		t.Errorf("with a provisioner that fails: %s: %s (%v)", e.Reason, e.Summary, err)
	}
}

// TestErrorsQuoteNoSecrets: an error of a driver may quote a password, which is in no output.
func TestErrorsQuoteNoSecrets(t *testing.T) {
	s := newScene()
	s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: `rpc error: code = Internal desc = login password=MARKER failed at https://u:MARKER@host, "token": "MARKER"`}}
	s.holder.Status, s.waiter.Spec.NodeName = s.waiter.Status, "a"
	s.says("", "Pod", "FailedAttachVolume", "Attach failed: Authorization: MARKER", time.Second)
	for _, subject := range []Ref{{Pods, "ns", "holder"}, {Pods, "ns", "waiter"}, {Attachments, "", s.va.Name}, {Volumes, "", "pv"}} {
		e, err := Explain(s.Snapshot, subject)
		if err != nil || e.Verdict == Clear {
			t.Fatalf("%s: %s (%v)", subject, e.Verdict, err)
		}
		if text, err := json.Marshal(e); err != nil || strings.Contains(string(text), "MARKER") {
			t.Errorf("%s: the answer has a secret (%v): %s", subject, err, text)
		}
	}
}
