package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

var nodeA = Ref{Resource: Nodes, Name: "a"}

// removed deletes the VolumeAttachment of the volume that node a uses.
func (s scene) removed() { s.Attachments, s.a.Status.VolumesAttached = nil, nil }

// queues makes the waiter's node list the volume, as a kubelet does before it is attached.
func (s scene) queues() { s.Nodes[1].Status.VolumesInUse = s.a.Status.VolumesInUse }

func reasonFor(t *testing.T, s scene, r Ref) decision.Reason {
	t.Helper()
	e, err := Explain(s.Snapshot, r)
	if err != nil {
		t.Fatal(err)
	}
	return e.Reason
}

// TestNodeThatOnlyWaits: a kubelet lists a volume in use as soon as a pod waits for it. That is no use of it.
func TestNodeThatOnlyWaits(t *testing.T) {
	s := newScene()
	s.queues()
	if got := reasonFor(t, s, Ref{Resource: Nodes, Name: "b"}); got != attachment.Settled {
		t.Errorf("the node of the pod that waits: %s", got)
	}
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil || e.Reason != explain.HeldByRunningPod {
		t.Errorf("%s (%v)", e.Reason, err)
	}
	for _, f := range Stuck(s.Snapshot, "", 0).Items {
		for _, h := range f.Holders {
			if h.Node.Name == "b" {
				t.Errorf("the node that waits is shown as a holder: %+v", h)
			}
		}
	}
	if list := Orphans(s.Snapshot, true); list.Verdict != Clear {
		t.Errorf("%+v", list.Items)
	}
}

// TestAttachmentRemovedUnderUse: a volume in use whose VolumeAttachment was deleted is that for everyone who asks.
func TestAttachmentRemovedUnderUse(t *testing.T) {
	s := newScene()
	s.removed()
	s.queues()
	for _, r := range []Ref{{Pods, "ns", "waiter"}, {Pods, "ns", "holder"}, {Claims, "ns", "claim"}, {Volumes, "", "pv"}, nodeA} {
		if got := reasonFor(t, s, r); got != explain.UsedWithoutAttachment {
			t.Errorf("%s: %s", r, got)
		}
	}
	e, _ := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if f := e.Findings[0]; len(f.Holders) != 1 || f.Holders[0].Node.Name != "a" {
		t.Errorf("holders %+v", f.Holders)
	}
	if list := Stuck(s.Snapshot, "", 0); list.Verdict != Unsafe || list.Items[0].Reason != explain.UsedWithoutAttachment {
		t.Errorf("stuck: %+v", list.Items)
	}
	s.Pods, s.holder.Spec.NodeName = []*corev1.Pod{s.waiter}, "" // the unmount may still run
	if got := reasonFor(t, s, Ref{Pods, "ns", "waiter"}); got != explain.UsedWithoutAttachment {
		t.Errorf("without a pod on the node: %s", got)
	}
}

// TestAttachedAgainUnderUse: a VolumeAttachment that is created again does not repair a mount.
func TestAttachedAgainUnderUse(t *testing.T) {
	s := newScene()
	s.Pods = []*corev1.Pod{s.holder}
	s.torn()
	s.va.CreationTimestamp = metav1.NewTime(s.Now)
	for _, r := range []Ref{{Pods, "ns", "holder"}, {Volumes, "", "pv"}, {Attachments, "", s.va.Name}, nodeA} {
		if got := reasonFor(t, s, r); got != explain.UsedWithoutAttachment {
			t.Errorf("%s: %s", r, got)
		}
	}
}

// TestNodeStates: what a node is shown as, for each way to be lost.
func TestNodeStates(t *testing.T) {
	tainted := func(s scene, status corev1.ConditionStatus) {
		s.outOfService(status)
	}
	for name, one := range map[string]struct {
		make    func(scene)
		want    decision.Reason
		verdict Verdict
	}{
		"Ready":                                 {func(scene) {}, attachment.Settled, Clear},
		"its Node is deleted":                   {func(s scene) { s.Nodes = s.Nodes[1:] }, attachment.NodeGone, Unsafe},
		"silent":                                {func(s scene) { s.heartbeat(40 * time.Second) }, explain.NodeSilent, Unsafe},
		"unreachable":                           {func(s scene) { s.a.Status.Conditions[0].Status = corev1.ConditionUnknown }, explain.NodeNotReady, Unsafe},
		"out of service":                        {func(s scene) { tainted(s, corev1.ConditionUnknown) }, explain.NodeOutOfService, InProgress},
		"out of service, and back":              {func(s scene) { tainted(s, corev1.ConditionTrue) }, attachment.OutOfServiceNodeReady, Unsafe},
		"out of service, after the volume left": {func(s scene) { tainted(s, corev1.ConditionUnknown); s.moved() }, attachment.Settled, Clear},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.Pods = []*corev1.Pod{s.holder}
			one.make(s)
			e, err := Explain(s.Snapshot, nodeA)
			if err != nil || e.Reason != one.want || e.Verdict != one.verdict {
				t.Errorf("%s %s: %s (%v), want %s %s", e.Verdict, e.Reason, e.Summary, err, one.verdict, one.want)
			}
		})
	}
}

// moved gives the volume to the other node, as after a failover. Node a lists it as before.
func (s scene) moved() {
	s.va.Name, s.va.Spec.NodeName = kube.AttachmentName("h", oneDriver, "b"), "b"
	s.holder.Spec.NodeName = "b"
	s.a.Status.VolumesAttached = nil
	s.Nodes[1].Status.VolumesInUse = s.a.Status.VolumesInUse
}

// TestUnmountOfUnknownAge: upstream records nowhere since when a volume is not needed. The age of its VolumeAttachment is not that.
func TestUnmountOfUnknownAge(t *testing.T) {
	s := newScene()
	s.Pods = nil
	if got := reasonFor(t, s, nodeA); got != attachment.StillInUse {
		t.Errorf("%s", got)
	}
	s.va.Annotations = map[string]string{kube.DetachRequestedAnnotation: s.Now.Add(-5 * time.Minute).Format(time.RFC3339)}
	s.Events = []*corev1.Event{{
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "claim"}, Reason: explain.FailedUnmount, Message: "device is busy",
	}}
	e, err := Explain(s.Snapshot, nodeA)
	if err != nil || e.Reason != explain.UnmountFailing || len(e.Findings[0].Facts) == 0 || !strings.Contains(e.Findings[0].Facts[0].Message, "device is busy") {
		t.Errorf("%s, %+v (%v)", e.Reason, e.Findings, err)
	}
}

// TestMissingClaimOfOneNamespace: all claims of the namespace were read, so one that is not there does not exist.
func TestMissingClaimOfOneNamespace(t *testing.T) {
	s := newScene()
	s.Claims, s.Whole, s.Absent = nil, []Resource{Attachments, Nodes}, []Ref{ClaimsIn("ns"), PodsIn("ns")}
	if got := reasonFor(t, s, Ref{Pods, "ns", "waiter"}); got != explain.ClaimMissing {
		t.Errorf("%s", got)
	}
}

// TestFailedProvisioning: a claim whose provisioning has failed is blocked at once, and not since longer than it exists.
func TestFailedProvisioning(t *testing.T) {
	s := newScene()
	s.Claims[0].Spec.VolumeName, s.Claims[0].UID = "", "claim"
	s.waiter.CreationTimestamp = metav1.NewTime(s.Now.Add(-3 * time.Second))
	s.Events = []*corev1.Event{{InvolvedObject: corev1.ObjectReference{UID: "claim"}, Reason: "ProvisioningFailed", Type: corev1.EventTypeWarning}}
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil || e.Reason != explain.ClaimNotBound || e.Verdict != Blocked || !e.Findings[0].Since.Equal(s.waiter.CreationTimestamp.Time) {
		t.Errorf("%s %s since %v (%v)", e.Verdict, e.Reason, e.Findings[0].Since, err)
	}
}

// TestNewestEventOfOneSecond: events have seconds, and their names the order in which they were created.
func TestNewestEventOfOneSecond(t *testing.T) {
	s := newScene()
	for _, name := range []string{"waiter.18a0000000000001", "waiter.18a0000000000003", "waiter.18a0000000000002"} {
		s.says("", "Pod", "FailedAttachVolume", name, time.Second)
		s.Events[len(s.Events)-1].Name = name
	}
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil || len(e.Findings[0].Facts) == 0 || !strings.HasSuffix(e.Findings[0].Facts[len(e.Findings[0].Facts)-1].Message, "0003") {
		t.Errorf("%+v (%v)", e.Findings, err)
	}
}

// TestPodReadTwice is shown once.
func TestPodReadTwice(t *testing.T) {
	s := newScene()
	s.Pods = append(s.Pods, s.holder.DeepCopy())
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil || len(e.Findings[0].Holders[0].Pods) != 1 {
		t.Errorf("%+v (%v)", e.Findings[0].Holders, err)
	}
}

// TestRiskOfFailedAttach: what a node only waits for has no unwritten data, and is not called safe either.
func TestRiskOfFailedAttach(t *testing.T) {
	s := newScene()
	s.Pods = []*corev1.Pod{s.waiter}
	s.queues()
	s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
	s.va.Name, s.va.Spec.NodeName, s.va.Status = kube.AttachmentName("h", oneDriver, "b"), "b", storagev1.VolumeAttachmentStatus{}
	plan, err := PlanForceDetach(s.Snapshot, s.va.Name)
	if err != nil || len(plan.Risks) != 1 || !strings.Contains(plan.Risks[0], "has not succeeded") {
		t.Errorf("%v (%v)", plan.Risks, err)
	}
}
