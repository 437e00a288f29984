package diagnosis

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// TestAttachmentThatOthersWaitFor: a VolumeAttachment that pods use on a node that is not Ready is not clear while a pod on another node
// waits for its volume. On a node that is Ready it is as it should be.
func TestAttachmentThatOthersWaitFor(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	ref := Ref{Resource: Attachments, Name: kube.AttachmentName("h", fuzzDriver, "n2")}
	if e, err := Explain(m.Snapshot, ref); err != nil || e.Verdict != Clear {
		t.Fatalf("without another pod: %s %s (%v)", e.Verdict, e.Summary, err)
	}
	waiter := podOf("waiter", "n3", 20)
	waiter.Name, waiter.Status.Phase = "db-waiter", corev1.PodPending
	m.Pods = append(m.Pods, waiter)
	holder := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	holder.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	m.Nodes = append(m.Nodes, holder)
	if e, err := Explain(m.Snapshot, ref); err != nil || e.Verdict != Clear || !strings.Contains(e.Summary, "wait for the volume") {
		t.Errorf("with a node that is Ready: %s %s (%v)", e.Verdict, e.Summary, err)
	}
	holder.Status.Conditions[0].Status = corev1.ConditionUnknown
	e, err := Explain(m.Snapshot, ref)
	if err != nil || len(e.Findings) != 1 || e.Findings[0].Subject.Name != "db-waiter" || e.Verdict == Clear {
		t.Errorf("got %s %s (%v), want what db-waiter waits for", e.Verdict, e.Summary, err)
	}
	m.Volumes[0].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	if e, err := Explain(m.Snapshot, ref); err != nil || len(e.Findings) != 1 || e.Findings[0].Subject.Name == "db-waiter" {
		t.Errorf("with a shared volume: %s %s (%v)", e.Verdict, e.Summary, err)
	}
}
