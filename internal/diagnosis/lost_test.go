package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestReadWriteOncePodOnLostNode: a pod that has the only use of a claim on a node that is lost cannot end: deleting it is no step, and
// forcing it is unsafe.
func TestReadWriteOncePodOnLostNode(t *testing.T) {
	for name, one := range map[string]struct {
		make func(scene)
		want decision.Reason
	}{
		"Ready":          {func(scene) {}, explain.ReadWriteOncePodInUse},
		"unreachable":    {func(s scene) { s.a.Status.Conditions[0].Status = corev1.ConditionUnknown }, explain.NodeNotReady},
		"out of service": {func(s scene) { s.outOfService(corev1.ConditionUnknown) }, explain.NodeOutOfService},
		"silent":         {func(s scene) { s.heartbeat(40 * time.Second) }, explain.NodeSilent},
		"deleted":        {func(s scene) { s.Nodes = s.Nodes[1:] }, attachment.NodeGone},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.Volumes[0].Spec.AccessModes[0], s.waiter.Spec.NodeName = corev1.ReadWriteOncePod, ""
			s.waiter.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "0/2 nodes are available: 2 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.",
			}}
			one.make(s)
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != one.want {
				t.Errorf("%s: %s (%v), want %s", e.Reason, e.Summary, err, one.want)
			}
		})
	}
}

// TestShortestToleration: of several tolerations of one taint the shortest limit decides, as in upstream's taint eviction.
func TestShortestToleration(t *testing.T) {
	s := newScene()
	s.a.Status.Conditions[0].Status = corev1.ConditionUnknown
	exists := corev1.TolerationOpExists
	s.holder.Spec.Tolerations = []corev1.Toleration{
		{Operator: exists}, {Key: corev1.TaintNodeUnreachable, Operator: exists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
		{Key: corev1.TaintNodeUnreachable, Operator: exists, TolerationSeconds: new(int64(60))},
	}
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "holder"})
	if err != nil || len(e.Findings) == 0 {
		t.Fatal(e, err)
	}
	if clock := strings.Join(e.Findings[0].Clock, "\n"); !strings.Contains(clock, "is deleted at 2026-11-01T11:01:00Z, 60 s after") {
		t.Errorf("the clock: %s", clock)
	}
}

// TestIsolatedNode: a node from which recovery took the volume, and which lists it in use from before that, gets no VolumeAttachment; that is no fault
// of the controller.
func TestIsolatedNode(t *testing.T) {
	s := newScene()
	b := s.Nodes[1]
	b.Spec.Taints = []corev1.Taint{{Key: kube.IsolationTaint, Value: "belay-1", Effect: corev1.TaintEffectNoSchedule}}
	b.Status.VolumesInUse, s.a.Status = s.a.Status.VolumesInUse, b.Status
	s.Attachments, s.Pods = nil, s.Pods[1:]
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil || e.Reason != attachment.NodeIsolated {
		t.Errorf("%s: %s (%v), want %s", e.Reason, e.Summary, err, attachment.NodeIsolated)
	}
}
