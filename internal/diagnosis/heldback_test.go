package diagnosis

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// reports adds an event in the name of recovery about node a, ten seconds old, and later ones are newer.
func (s scene) reports(reasons ...decision.Reason) {
	for i, r := range reasons {
		s.Events = append(s.Events, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "e"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "a"},
			Reason: string(r), ReportingController: Recovery, LastTimestamp: metav1.NewTime(s.Now.Add(time.Duration(i-10) * time.Second)),
		})
	}
}

// silent makes node a silent, where recovery runs and node b is heard.
func (s scene) silent() {
	s.Whole = append(s.Whole, Fences, FenceSources)
	s.a.Status.Conditions[0].Status = corev1.ConditionUnknown
	s.a.Status.NodeInfo.BootID, s.a.Status.NodeInfo.SystemUUID, s.a.UID = "boot", "machine", "a"
	lease := func(namespace, name string, ago time.Duration) {
		s.Leases = append(s.Leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("x"), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: s.Now.Add(-ago)},
		}})
	}
	lease(metav1.NamespaceSystem, Recovery+"-detector", time.Second)
	lease(corev1.NamespaceNodeLease, "a", time.Minute)
	lease(corev1.NamespaceNodeLease, "b", time.Second)
}

// TestEventsThatTheObjectsContradict: an event in the name of recovery gives a reason only where no object says otherwise.
func TestEventsThatTheObjectsContradict(t *testing.T) {
	waits := func(s scene) { s.Fences[0].Status.Missing = []string{"an answer of the power switch"} }
	beside := func(s scene) {
		s.Fences[0].Status.Conditions = []metav1.Condition{{Type: kube.ConditionBesideEarlier, Status: metav1.ConditionTrue}}
	}
	commands := func(ago time.Duration) func(scene) {
		return func(s scene) {
			s.Fences[0].Status.Intents = []fencingv1.Intent{{Nonce: "n", NotAfter: metav1.NewMicroTime(s.Now.Add(fencing.IntentFor - ago))}}
		}
	}
	fenceB := func(phase fencing.Phase, more ...func(scene)) func(scene) {
		return func(s scene) {
			s.Fences = []*fencingv1.NodeFence{{
				ObjectMeta: metav1.ObjectMeta{Name: "b", Finalizers: []string{kube.FenceFinalizer}}, Spec: fencingv1.NodeFenceSpec{NodeName: "b"},
				Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(phase)},
			}}
			for _, m := range more {
				m(s)
			}
		}
	}
	for name, one := range map[string]struct {
		reason decision.Reason
		change func(scene)
		shown  bool
	}{
		"no annotation":  {fencing.NodeOptedOut, nil, false},
		"the annotation": {fencing.NodeOptedOut, func(s scene) { s.a.Annotations[kube.FenceOptOutAnnotation] = "true" }, true},
		"no condition":   {fencing.NodeUnderMaintenance, nil, false},
		"the condition": {fencing.NodeUnderMaintenance, func(s scene) {
			s.a.Status.Conditions = append(s.a.Status.Conditions, corev1.NodeCondition{Type: kube.MaintenanceInProgress, Status: corev1.ConditionTrue})
		}, true},
		"an identity":                          {fencing.NodeIdentityUnknown, nil, false},
		"no identity":                          {fencing.NodeIdentityUnknown, func(s scene) { s.a.Status.NodeInfo.BootID = "" }, true},
		"a second signal":                      {fencing.NoSecondSignal, nil, false},
		"no second signal":                     {fencing.NoSecondSignal, func(s scene) { s.a.Status.Conditions[0].Status = corev1.ConditionTrue }, true},
		"no fence":                             {fencing.TooManyInFlight, nil, false},
		"a fence that waits for others":        {fencing.TooManyInFlight, fenceB(fencing.Moved), false},
		"a fence":                              {fencing.TooManyInFlight, fenceB(fencing.Fencing), true},
		"a fence without a switch":             {fencing.TooManyInFlight, fenceB(fencing.Fencing, waits), false},
		"a fence whose switch was not read":    {fencing.TooManyInFlight, fenceB(fencing.Fencing, waits, func(s scene) { s.Whole = []Resource{Fences} }), true},
		"a fence beside an earlier machine":    {fencing.TooManyInFlight, fenceB(fencing.Fencing, beside), false},
		"a fence that commands":                {fencing.TooManyInFlight, fenceB(fencing.Fencing, waits, commands(9*time.Minute)), true},
		"a fence that commands in vain":        {fencing.TooManyInFlight, fenceB(fencing.Fencing, waits, commands(10*time.Minute)), false},
		"the others are heard":                 {fencing.TooManySilent, nil, false},
		"the others of the zone are heard":     {fencing.ZoneSilent, nil, false},
		"another is silent":                    {fencing.TooManySilent, func(s scene) { s.Leases[2].Spec.RenewTime.Time = s.Now.Add(-time.Minute) }, true},
		"another is fenced":                    {fencing.TooManySilent, fenceB(fencing.Moved), true},
		"a deleted one counts for no other":    {fencing.TooManySilent, func(s scene) { s.va.Spec.NodeName = "gone" }, false},
		"the other nodes are unread":           {fencing.TooManySilent, func(s scene) { s.Whole = []Resource{Fences} }, true},
		"no object shows an answer":            {fencing.SignOfLife, nil, true},
		"an answer, and the detector is gone":  {fencing.SignOfLife, func(s scene) { s.Leases[0].Spec.HolderIdentity = nil }, false},
		"an answer, and the lease is renewed":  {fencing.SignOfLife, func(s scene) { s.Leases[1].Spec.RenewTime.Time = s.Now.Add(-11 * time.Second) }, false},
		"an answer before the silence began":   {fencing.SignOfLife, func(s scene) { s.Events[0].LastTimestamp = metav1.NewTime(s.Now.Add(-2 * time.Minute)) }, false},
		"an answer, in the name of another":    {fencing.SignOfLife, func(s scene) { s.Events[0].ReportingController = "kubelet" }, false},
		"an answer, and the Node is not known": {fencing.SignOfLife, func(s scene) { s.Nodes = s.Nodes[1:] }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.silent()
			s.reports(one.reason)
			if one.change != nil {
				one.change(s)
			}
			if got := s.HeldBack()["a"]; name != "an answer, and the Node is not known" && (got == one.reason) != one.shown {
				t.Errorf("HeldBack has %q", got)
			}
			if r, _ := newState(s.Snapshot).heldBack("a"); (r == one.reason) != one.shown {
				t.Errorf("heldBack: %q, shown: %v", r, one.shown)
			}
		})
	}
}

// TestContradictedEventHidesNoReason: an event that the objects contradict is passed over, and what recovery has said stays its last word.
func TestContradictedEventHidesNoReason(t *testing.T) {
	s := newScene()
	s.silent()
	s.reports(fencing.SignOfLife, fencing.NodeUnderMaintenance, fencing.NodeOptedOut)
	if r, _ := newState(s.Snapshot).heldBack("a"); r != fencing.SignOfLife {
		t.Errorf("%q", r)
	}
}
