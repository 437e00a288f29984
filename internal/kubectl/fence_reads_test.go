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

// unusable makes the power switch of a node that lives unusable, a second ago.
func (s fencedScene) unusable(reason, message string) {
	s.source.Status.Conditions[0] = metav1.Condition{Type: kube.ConditionFenceReady, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: before(time.Hour)}
}

// lives makes the node live, without a fence.
func (s fencedScene) lives() {
	s.Fences = nil
	s.node.Status.Conditions[0].Status = corev1.ConditionTrue
	s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
}

// TestHeldNodeIsInProgressAtFirst: the exit status of a node that recovery leaves alone is 0 for the first 90 s of its silence, whatever the reason; of one that is
// never fenced it is 2 as while it lives.
func TestHeldNodeIsInProgressAtFirst(t *testing.T) {
	for r, first := range map[decision.Reason]diagnosis.Verdict{
		fencing.SignOfLife: diagnosis.InProgress, fencing.NodeLeaseHeld: diagnosis.InProgress, fencing.DetectorCutOff: diagnosis.InProgress, fencing.NothingToLose: diagnosis.NotVolume,
		fencing.NodeOptedOut: diagnosis.Blocked,
	} {
		for silent, want := range map[time.Duration]diagnosis.Verdict{55 * time.Second: first, 2 * time.Minute: diagnosis.Blocked} {
			if r == fencing.NothingToLose {
				want = first
			}
			s := newFencedScene()
			s.reported(r)
			if r == fencing.NodeOptedOut {
				s.node.Annotations[kube.FenceOptOutAnnotation] = "true"
			}
			s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-silent)}
			if e := evidenceAbout(t, s); e.State != diagnosis.Held || e.Verdict != want {
				t.Errorf("%s after %v: %s, %s, want %s", r, silent, e.State, e.Verdict, want)
			}
		}
	}
}

// TestSecretOfASwitchIsNamed: who reads a FenceSource reads the name of its Secret there: the line to set can be copied.
func TestSecretOfASwitchIsNamed(t *testing.T) {
	s := newFencedScene()
	s.lives()
	s.AllNamespaces, s.Namespaces = false, []string{"ns"}
	s.source.Spec.Levels[0].Feeds[0].SecretRef = &fencingv1.SecretReference{Namespace: "belay-system", Name: "bmc"}
	const line = "kubectl annotate secret -n belay-system bmc --overwrite fencing.belay.dev/addresses=192.0.2.11"
	s.unusable(string(explain.SecretNotBound), "check that it is the address of your power switch: "+line)
	e := evidenceAbout(t, s)
	if text := EvidenceText(&e); !strings.Contains(text, line) {
		t.Errorf("it lacks %q:\n%s", line, text)
	}
}

// TestRefusedLoginIsNotTheNetwork: a switch that refused the login is reached: user and password are the next step.
func TestRefusedLoginIsNotTheNetwork(t *testing.T) {
	s := newFencedScene()
	s.lives()
	s.unusable("NoAnswer", "the power switch refused the login: RAKP 2 HMAC is invalid")
	s.source.Status.Refused = []fencingv1.RefusedLogins{{Times: 1}}
	if e := evidenceAbout(t, s); len(e.Next) != 1 || !strings.Contains(e.Next[0].Text, "user and password") || strings.Contains(e.Next[0].Text, "network") {
		t.Errorf("%+v", e.Next)
	}
}

// TestFenceWithAnUnusableSwitch: a fence whose FenceSource exists and is wrong says so, and does not advise to create one.
func TestFenceWithAnUnusableSwitch(t *testing.T) {
	s := newFencedScene()
	s.waits(fencing.NoEvidence)
	s.unusable("OtherMachine", "the hardware has the system UUID x")
	s.source.Status.Bound = nil
	e, about := evidenceAbout(t, s), aboutNode(t, s)
	for _, text := range []string{EvidenceText(&e), texted(t, about)} {
		for words, want := range map[string]bool{
			"(OtherMachine): the hardware has the system UUID x": true, "Correct the address or the plug": true, "create a FenceSource": false, "configured or reachable": false,
		} {
			if strings.Contains(text, words) != want {
				t.Errorf("%q is there: %t:\n%s", words, !want, text)
			}
		}
	}
	if text := EvidenceText(&e); strings.Contains(text, "never said On") || !strings.Contains(text, "False since 60m ago") {
		t.Errorf("the time is that of the state, and nothing is known of an earlier On:\n%s", text)
	}
}

// TestRequestOverridesALease: that another component works on the node is a risk of a request.
func TestRequestOverridesALease(t *testing.T) {
	s := newFencedScene()
	s.reported(fencing.NodeLeaseHeld)
	p, err := diagnosis.PlanPowerOff(s.Snapshot, "a", diagnosis.PowerOffRequest{}, diagnosis.Author{Name: "alice", May: decision.Yes})
	if err != nil || p.Refusal != "" || !strings.Contains(strings.Join(p.Risks, "\n"), "another component may be working on the machine") {
		t.Errorf("%v: %s, %q", err, p.Refusal, p.Risks)
	}
}
