package kubectl

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// aboutNode is what explain says about node a.
func aboutNode(t *testing.T, s fencedScene) diagnosis.Explanation {
	t.Helper()
	about, err := diagnosis.Explain(s.Snapshot, diagnosis.Ref{Resource: diagnosis.Nodes, Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return about
}

// evidenceAbout is what evidence says about node a.
func evidenceAbout(t *testing.T, s fencedScene) diagnosis.NodeEvidence {
	t.Helper()
	e, err := diagnosis.Evidence(s.Snapshot, "a")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestReleaseIsNotBlocked: the time of a release counts from its beginning, and not from the proof of a machine that was off for hours. One that
// does not end is blocked; explain and evidence agree.
func TestReleaseIsNotBlocked(t *testing.T) {
	readyFor := func(s fencedScene, d time.Duration) {
		s.settles()
		s.fence.Status.Untainted, s.fence.Status.Missing = nil, nil
		s.node.Status.Conditions[0].LastTransitionTime = before(d)
	}
	for name, tc := range map[string]struct {
		make func(s fencedScene)
		want diagnosis.Verdict
	}{
		"the taint was removed just now": {fencedScene.settles, diagnosis.InProgress},
		"it was removed long ago": {func(s fencedScene) {
			s.settles()
			s.fence.Status.Untainted = &metav1.Time{Time: fencedNow.Add(-3 * time.Minute)}
		}, diagnosis.Blocked},
		"the node is back just now":  {func(s fencedScene) { readyFor(s, 5*time.Second) }, diagnosis.InProgress},
		"it has been back for hours": {func(s fencedScene) { readyFor(s, 2*time.Hour) }, diagnosis.Blocked},
		"a person released it just now": {func(s fencedScene) {
			readyFor(s, 2*time.Hour)
			s.fence.DeletionTimestamp = &metav1.Time{Time: fencedNow.Add(-2 * time.Second)}
		}, diagnosis.InProgress},
		"it is not Ready yet": {func(s fencedScene) {
			readyFor(s, 2*time.Hour)
			s.node.Status.Conditions[0].Status = corev1.ConditionUnknown
		}, diagnosis.InProgress},
		"it is not Ready, and no actor runs": {func(s fencedScene) {
			readyFor(s, 2*time.Hour)
			s.node.Status.Conditions[0].Status = corev1.ConditionUnknown
			s.Leases[4].Spec.HolderIdentity = nil
		}, diagnosis.Blocked},
		"a command may be carried out": {func(s fencedScene) {
			s.settles()
			s.intends(time.Second)
			s.waits(fencing.IntentOpen)
		}, diagnosis.InProgress},
		"it has long been over": {func(s fencedScene) {
			s.settles()
			s.intends(-2 * time.Minute)
			s.waits(fencing.IntentOpen)
		}, diagnosis.Blocked},
		"the switch is asked after it": {func(s fencedScene) {
			readyFor(s, 2*time.Hour)
			s.intends(-2 * time.Second)
			s.waits(fencing.AwaitingSource)
		}, diagnosis.InProgress},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			tc.make(s)
			e, about := evidenceAbout(t, s), aboutNode(t, s)
			if e.Verdict != tc.want || about.Verdict != tc.want {
				t.Errorf("evidence says %s since %v, explain %s, want %s", e.Verdict, e.Since, about.Verdict, tc.want)
			}
			if list := diagnosis.Stuck(s.Snapshot, "", 0); list.Verdict == diagnosis.Unsafe {
				t.Errorf("stuck: %+v", list.Items)
			}
		})
	}
}

// TestEndOfAFence: a fence that waits for the end of a command says what ended it, and that it is cancelled then.
func TestEndOfAFence(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(s fencedScene)
		says string
	}{
		"opted out":   {func(s fencedScene) { s.node.Annotations[kube.FenceOptOutAnnotation] = "true" }, "fencing.belay.dev/opt-out"},
		"maintenance": {func(s fencedScene) { s.maintained() }, "MaintenanceInProgress"},
		"renewed":     {func(s fencedScene) { s.fence.Spec.LastRenewal = "earlier" }, "has renewed its lease"},
		"deleted":     {func(s fencedScene) { s.fence.DeletionTimestamp = &metav1.Time{Time: fencedNow} }, "is being deleted"},
		"unknown":     {func(fencedScene) {}, "sign of life"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			s.intends(10 * time.Second)
			s.waits(fencing.IntentOpen)
			tc.make(s)
			e := evidenceAbout(t, s)
			if !strings.Contains(e.Summary, tc.says) || !strings.Contains(e.Summary, "then cancels the fence") || !strings.Contains(e.Clock[0], "the fence is cancelled") {
				t.Errorf("want %q and the cancellation: %s; %v", tc.says, e.Summary, e.Clock)
			}
			if about := aboutNode(t, s); !strings.Contains(about.Summary, tc.says) {
				t.Errorf("explain: %s", about.Summary)
			}
		})
	}
	s := newFencedScene()
	s.settles()
	s.intends(10 * time.Second)
	s.waits(fencing.IntentOpen)
	if e := evidenceAbout(t, s); !strings.Contains(e.Clock[0], "then the node is released") || strings.Contains(e.Summary, "cancel") {
		t.Errorf("%s; %v", e.Summary, e.Clock)
	}
}

// maintained gives the node the condition of a maintenance.
func (s fencedScene) maintained() {
	s.node.Status.Conditions = append(s.node.Status.Conditions, corev1.NodeCondition{Type: kube.MaintenanceInProgress, Status: corev1.ConditionTrue})
}

// TestSilentNodesAreNamed: which nodes the brake counts, also those that were fenced.
func TestSilentNodesAreNamed(t *testing.T) {
	s := newFencedScene()
	s.reported(fencing.TooManySilent)
	moved := fenceOn("m", 1)
	moved.Status.Phase = fencingv1.Phase(fencing.Moved)
	over, back := fenceOn("over", 1), fenceOn("back", 1)
	over.Status.Phase, over.Finalizers = fencingv1.Phase(fencing.Released), nil
	back.Status.Phase = fencingv1.Phase(fencing.Releasing)
	s.Fences = []*fencingv1.NodeFence{moved, over, back}
	e := evidenceAbout(t, s)
	text := EvidenceText(&e)
	if !strings.Contains(text, "a (lease renewed at 2026-11-24T09:58:20Z), m (fenced, phase Moved: it counts until its machine is back)\n") {
		t.Errorf("the nodes that count are not named:\n%s", text)
	}
}

// TestTaintsOutliveTheirFence: explain names the taints that nothing removes, also where recovery's API is gone, and none that a fence explains.
func TestTaintsOutliveTheirFence(t *testing.T) {
	isolated := corev1.Taint{Key: kube.IsolationTaint, Value: "belay-3", Effect: corev1.TaintEffectNoSchedule}
	healthy := func(s fencedScene) {
		s.settles()
		s.node.Spec.Taints = []corev1.Taint{isolated}
	}
	for name, tc := range map[string]struct {
		make func(s fencedScene)
		want bool
	}{
		"of a fence": {healthy, false},
		"the API is gone": {func(s fencedScene) {
			healthy(s)
			s.Whole, s.Fences, s.Absent = s.Whole[:len(s.Whole)-2], nil, []diagnosis.Ref{{Resource: diagnosis.Fences}}
		}, true},
		"the fences could not be read": {func(s fencedScene) {
			healthy(s)
			s.Whole, s.Fences = s.Whole[:len(s.Whole)-2], nil
		}, false},
		"removed by force":    {func(s fencedScene) { healthy(s); s.Fences = nil }, true},
		"of an earlier fence": {func(s fencedScene) { healthy(s); s.node.Spec.Taints[0].Value = "belay-2" }, true},
		"of another client":   {func(s fencedScene) { healthy(s); s.Fences = nil; s.node.Spec.Taints[0].Value = "x" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			tc.make(s)
			text := texted(t, aboutNode(t, s))
			if found := strings.Contains(text, "TaintWithoutFence") && strings.Contains(text, "kubectl taint node a fencing.belay.dev/isolated-"); found != tc.want {
				t.Errorf("found: %t, want %t:\n%s", found, tc.want, text)
			}
		})
	}
}

// TestTimerWithRecovery: where recovery may run in belay-controller, no clock promises a detach that this controller never does.
func TestTimerWithRecovery(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(s fencedScene)
		says bool
	}{
		"in belay-controller, as far as is known": {func(fencedScene) {}, true},
		"in a process of its own":                 {func(s fencedScene) { s.Leases[4].Spec.HolderIdentity = new("x") }, false},
		"not installed":                           {func(s fencedScene) { s.Whole = s.Whole[:len(s.Whole)-2] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			s.ownController()
			s.Fences = nil
			tc.make(s)
			if text := texted(t, aboutNode(t, s)); strings.Contains(text, "never detaches because of a timeout") != tc.says {
				t.Errorf("want it to say so: %t:\n%s", tc.says, text)
			}
		})
	}
}

// TestRefusedUnfence: nothing is at risk where nothing is done, and a node without a fence is answered as by fence.
func TestRefusedUnfence(t *testing.T) {
	s := newFencedScene()
	s.evicts()
	s.ownController()
	author := diagnosis.Author{Name: "alice", May: decision.Yes}
	plan, err := diagnosis.PlanUnfence(s.Snapshot, "a", "", author)
	if err != nil || plan.Refusal == "" || len(plan.Risks) > 0 {
		t.Errorf("%v: %+v", err, plan)
	}
	for _, node := range []string{"b", "no-such-node"} {
		release, err := diagnosis.PlanUnfence(s.Snapshot, node, "", author)
		if err != nil || !strings.Contains(release.Refusal, "nothing to end") {
			t.Errorf("%v: %+v", err, release)
		}
		state, err := diagnosis.PlanStatement(s.Snapshot, node, diagnosis.StatementRequest{}, author)
		if err != nil || !strings.Contains(state.Refusal, "nothing to state") {
			t.Errorf("%v: %+v", err, state)
		}
	}
}

// TestLockedSourceNamesItsSecret: the step shows the Secret, whose name no output has.
func TestLockedSourceNamesItsSecret(t *testing.T) {
	if steps := explain.FenceNext(fencing.SourceLocked, "a"); steps[0].Command != "kubectl get fencesource a -o yaml" {
		t.Errorf("%+v", steps[0])
	}
}

// TestVolumesAreCounted: in words that are right for one.
func TestVolumesAreCounted(t *testing.T) {
	if text := explain.FenceVolumes(1); strings.Contains(text, "1 volumes") || !strings.Contains(text, "detach: 1.") {
		t.Error(text)
	}
}

// TestProofIsNamedAfterTheFence: by what evidence a fence was carried out, which switch said so and when, is in what explain and evidence say of the node
// until the record is gone.
func TestProofIsNamedAfterTheFence(t *testing.T) {
	off := stamped(fencedNow.Add(-30 * time.Second))
	for name, tc := range map[string]struct {
		make func(s fencedScene)
		want string
	}{
		"moved": {fencedScenes["moved"].make, "the power switch of its machine says Off (FenceSource a, fence_ipmilan, then fence_apc plug 3 and fence_apc plug 4), at " + off},
		"released": {func(s fencedScene) {
			s.gone()
			s.answers("Off", 30*time.Second)
			s.is(kube.ConditionProven, string(fencing.PoweredOff), 25*time.Second)
			s.is(kube.ConditionEnded, string(fencing.Released), time.Second)
			s.fence.Status.Phase, s.fence.Finalizers = fencingv1.Phase(fencing.Released), nil
			s.node.Status.Conditions[0].Status = corev1.ConditionTrue
			s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
		}, "the power switch of its machine says Off (FenceSource a, "},
		"the answers of its end are gone": {func(s fencedScene) {
			fencedScenes["moved"].make(s)
			s.fence.Status.Evidence, s.FenceSources = nil, nil
		}, "the power switch of its machine says Off, at " + off},
		"a person": {func(s fencedScene) {
			fencedScenes["moved"].make(s)
			e := &s.fence.Status.Evidence[0]
			e.Class, e.Power, e.Source, e.Raw = string(fencing.Stated), "", "alice", "pulled both plugs"
			s.fence.Status.Conditions[0].Reason = string(fencing.Stated)
		}, "a person stated that its machine is off (alice): pulled both plugs, at " + off},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			tc.make(s)
			s.Pods = nil
			about := aboutNode(t, s)
			if !strings.Contains(about.Summary, tc.want) {
				t.Errorf("explain: %s: %s, want %s", about.Reason, about.Summary, tc.want)
			}
			e := evidenceAbout(t, s)
			if text := EvidenceText(&e); !strings.Contains(text, tc.want) {
				t.Errorf("evidence lacks %q:\n%s", tc.want, text)
			}
		})
	}
}

func stamped(t time.Time) string { return t.UTC().Format(time.RFC3339) }
