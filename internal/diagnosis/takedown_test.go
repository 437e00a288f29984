package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTakedown: who stops the machine of a node is part of the answer about it, whether the node is lost or well, with what that one waits for.
func TestTakedown(t *testing.T) {
	disrupted := func(s scene) {
		s.a.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
	}
	unreachable := func(s scene) { s.a.Status.Conditions[0].Status = corev1.ConditionUnknown }
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	deleted := metav1.NewTime(time.Date(2026, 11, 1, 10, 58, 0, 0, time.UTC))
	claim := func(s scene, conditions ...metav1.Condition) {
		s.Machines = []*Machine{{ObjectMeta: metav1.ObjectMeta{Name: "default-x1", DeletionTimestamp: &deleted}, Node: "a", Owner: "Karpenter", Kind: "NodeClaim", Resource: "nodeclaims.karpenter.sh", Conditions: conditions}}
	}
	for name, c := range map[string]struct {
		make []func(scene)
		want string
	}{
		"Karpenter, and the node is well": {[]func(scene){disrupted}, "its machine is being stopped by Karpenter: the taint karpenter.sh/disrupted"},
		"Karpenter, and it is lost":       {[]func(scene){disrupted, unreachable}, "its machine is being stopped by Karpenter: the taint karpenter.sh/disrupted"},
		"Karpenter waits for volumes": {[]func(scene){disrupted, func(s scene) {
			claim(s, condition("VolumesDetached", metav1.ConditionUnknown, "AwaitingVolumeDetachment"), condition("Drained", metav1.ConditionTrue, "Drained"))
		}}, "Karpenter deletes its NodeClaim default-x1 since 2026-11-01T10:58:00Z, with the condition VolumesDetached Unknown (AwaitingVolumeDetachment)"},
		"it drains": {[]func(scene){disrupted, func(s scene) {
			claim(s, condition("VolumesDetached", metav1.ConditionUnknown, "AwaitingVolumeDetachment"), condition("Drained", metav1.ConditionUnknown, "Draining"))
		}}, "with the condition Drained Unknown (Draining)"},
		"Cluster API": {[]func(scene){unreachable, func(s scene) {
			s.Machines = []*Machine{{ObjectMeta: metav1.ObjectMeta{Namespace: "capi", Name: "m1", DeletionTimestamp: &deleted}, Node: "a", Owner: "Cluster API", Kind: "Machine",
				Conditions: []metav1.Condition{condition("Deleting", metav1.ConditionTrue, "WaitingForVolumeDetach")}}}
		}}, "Cluster API deletes its Machine capi/m1 since 2026-11-01T10:58:00Z, with the condition Deleting True (WaitingForVolumeDetach)"},
		"without the right": {[]func(scene){disrupted, func(s scene) {
			s.Machines = []*Machine{{ObjectMeta: metav1.ObjectMeta{Name: "default-x1"}, Node: "a", Kind: "NodeClaim", Unread: "you may not get nodeclaims.karpenter.sh"}}
		}}, "NodeClaim default-x1 could not be read (you may not get nodeclaims.karpenter.sh)"},
		"a machine that stays": {[]func(scene){func(s scene) {
			claim(s, condition("VolumesDetached", metav1.ConditionUnknown, "AwaitingVolumeDetachment"))
			s.Machines[0].DeletionTimestamp = nil
		}}, ""},
		"another node's": {[]func(scene){func(s scene) { claim(s); s.Machines[0].Node = "b" }}, ""},
	} {
		s := newScene()
		for _, change := range c.make {
			change(s)
		}
		e, err := Explain(s.Snapshot, Ref{Nodes, "", "a"})
		if err != nil {
			t.Fatal(name, err)
		}
		said := e.Summary
		for _, f := range e.Findings {
			said += "\n" + f.Summary
		}
		if c.want == "" && (strings.Contains(said, "machine is being stopped") || strings.Contains(said, "NodeClaim")) || !strings.Contains(said, c.want) {
			t.Errorf("%s: says %q, want %q", name, said, c.want)
		}
	}
}
