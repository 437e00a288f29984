package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// A user who waits for a volume whose detach may be followed by a late attach sees that, and when it ends: by the VolumeAttachment, the claim
// and the pod. What the attacher writes is what is read.
func TestPublishInDoubtIsExplained(t *testing.T) {
	until := time.Date(2026, 11, 1, 12, 4, 0, 0, time.UTC)
	doubtful := publication.Attachment{
		UID: "u", Name: "va", Node: "a", Deleting: true, Finalizer: true, VolumeProtected: true, RecordedNodeID: "i-a", NodeID: "i-a",
		Call: publication.Call{}.Begin(publication.Publish, "i-a", "", false).Fail(until.Add(-5*time.Minute), "no answer", true).DoubtUntil(until, true).
			Begin(publication.Unpublish, "i-a", "", false).Confirm(until.Add(-5 * time.Minute)),
	}
	decided := publication.Decide(until.Add(-4*time.Minute), publication.Observed{Exclusive: true, Attachments: []publication.Attachment{doubtful}}, publication.Policy{})
	i := slices.IndexFunc(decided.Steps, func(s publication.Step) bool { _, ok := s.(publication.RecordError); return ok })
	if i < 0 {
		t.Fatalf("nothing is recorded: %+v", decided)
	}
	s := newScene()
	s.Pods, s.a.Status = []*corev1.Pod{s.waiter}, corev1.NodeStatus{Conditions: s.a.Status.Conditions}
	s.va.Status.Attached = false
	s.va.UID, s.va.Finalizers = "u", []string{kube.AttacherFinalizer(oneDriver)}
	s.va.DeletionTimestamp = &metav1.Time{Time: s.Now.Add(-time.Minute)}
	s.va.Status.DetachError = &storagev1.VolumeError{Message: decided.Steps[i].(publication.RecordError).Message, Time: metav1.NewTime(s.Now.Add(-time.Minute))}
	for _, ref := range []Ref{{Attachments, "", s.va.Name}, {Claims, "ns", "claim"}, {Pods, "ns", "waiter"}} {
		e, err := Explain(s.Snapshot, ref)
		if err != nil || len(e.Findings) == 0 {
			t.Fatalf("%v: %+v (%v)", ref, e, err)
		}
		f := e.Findings[0]
		if f.Reason != publication.PublishInDoubt || f.Verdict != Unsafe || !strings.Contains(f.Summary, publication.FormatTime(until)) {
			t.Errorf("%v: %s, %s: %s", ref, f.Reason, f.Verdict, f.Summary)
		}
	}
}
