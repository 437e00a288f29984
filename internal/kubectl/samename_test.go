package kubectl

import (
	"slices"
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

const uuidOfB, bootOfB = "4c4c4544-0042-3510-8052-b4c04f4d3333", "11111111-2222-3333-4444-666666666666"

// twoMachines is a scene in which a second machine has the name of node a and is silent too. The fence of the first waits for evidence; the second's is returned,
// and not in the snapshot.
func twoMachines() (s fencedScene, second *fencingv1.NodeFence) {
	s = newFencedScene()
	s.waits(fencing.NoEvidence)
	s.Attachments[0].Annotations = map[string]string{kube.BootIDAnnotation: bootOfA, kube.SystemUUIDAnnotation: uuidOfA}
	s.node.UID, s.node.Status.NodeInfo.BootID, s.node.Status.NodeInfo.SystemUUID = "uid-b", bootOfB, strings.ToUpper(uuidOfB)
	s.node.Status.VolumesInUse, s.node.Status.VolumesAttached = nil, nil
	s.source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-b", BootID: bootOfB, MachineID: uuidOfB, HardwareID: uuidOfB, Time: metav1.NewMicroTime(fencedNow.Add(-3 * time.Minute))}
	second = s.fence.DeepCopy()
	second.Name, second.UID = kube.FenceNames(kube.BootOf(s.node))[1], "fence-b"
	second.Spec.NodeUID, second.Spec.BootID, second.Spec.MachineID, second.Spec.Epoch = "uid-b", bootOfB, uuidOfB, 4
	missing, _ := explain.FenceWait(fencing.SourceSilent)
	second.Status.Missing = []string{missing}
	return s, second
}

// TestFencesOfTwoMachines: what is asked about a node is about the machine that it shows, and what is asked about a volume is about the machine that has it.
func TestFencesOfTwoMachines(t *testing.T) {
	s, second := twoMachines()
	s.Fences = append(s.Fences, second)
	for _, c := range []struct {
		ref  diagnosis.Ref
		want decision.Reason
	}{
		{diagnosis.Ref{Resource: diagnosis.Nodes, Name: "a"}, fencing.SourceSilent},
		{diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "ns", Name: "db-new"}, fencing.NoEvidence},
	} {
		about, err := diagnosis.Explain(s.Snapshot, c.ref)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(about.Findings, func(f diagnosis.Finding) bool { return f.Subject == c.ref && f.Reason == c.want }) {
			t.Errorf("%s: %+v, want %s", c.ref, about.Findings, c.want)
		}
	}
	e, err := diagnosis.Evidence(s.Snapshot, "a")
	if err != nil || e.Fence == nil || e.Fence.Boot.MachineID != uuidOfB || e.Reason != fencing.SourceSilent {
		t.Fatalf("%v: %+v", err, e)
	}
	if last := e.Facts[len(e.Facts)-1].Message; !strings.Contains(last, "NodeFence a is about another machine of this name, "+uuidOfA) {
		t.Errorf("facts %+v", e.Facts)
	}
}

// TestTextsOfTheOtherMachine: what is printed about a fence whose name is not that of the node names its power switch, and nothing of the other machine.
func TestTextsOfTheOtherMachine(t *testing.T) {
	s, second := twoMachines()
	second.Status.Phase, second.Status.Missing = fencingv1.Phase(fencing.Moved), nil
	second.Status.Conditions = []metav1.Condition{{Type: kube.ConditionProven, Status: metav1.ConditionTrue, Reason: string(fencing.PoweredOff), LastTransitionTime: before(time.Minute)}}
	second.Status.Evidence = []fencingv1.Evidence{{
		Class: string(fencing.PoweredOff), Power: "Off", Source: "a", BootID: bootOfB, MachineID: uuidOfB, Nonce: "n", Time: metav1.NewMicroTime(fencedNow.Add(-time.Minute)), Raw: "Status: OFF",
	}}
	s.Fences = append(s.Fences, second)
	e, err := diagnosis.Evidence(s.Snapshot, "a")
	if agent := s.source.Spec.Levels[0].Feeds[0].Agent; err != nil || !strings.Contains(e.Summary, agent) {
		t.Errorf("%v: %q does not name the switch, %s", err, e.Summary, agent)
	}
	s, second = twoMachines()
	s.Fences = append(s.Fences, second)
	p, err := diagnosis.PlanUnfence(s.Snapshot, "a", uuidOfA, diagnosis.Author{Name: "jo", May: decision.Yes})
	if text := strings.Join(p.Risks, "\n"); err != nil || p.FenceName() != "a" || strings.Contains(text, "node a is still") {
		t.Errorf("%v: %s: what is said of the Node is said of the other machine: %s", err, p.FenceName(), text)
	}
}

// TestHealthyReplacement: while the fence of a machine waits whose name a healthy one has now, each text says first which of the two is meant, and each command
// about the fence names its machine: who reads the name alone would switch the healthy one off.
func TestHealthyReplacement(t *testing.T) {
	s, _ := twoMachines()
	s.node.Status.Conditions[0].Status = corev1.ConditionTrue
	s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
	s.fence.Status.Advice = "State it with kubectl belay fence a --confirm-powered-off."
	const first = "another machine, system UUID " + uuidOfB + ", has the name a now, and its Node is Ready: do not switch that one off; the fence is about the machine with system UUID " + uuidOfA
	e, err := diagnosis.Evidence(s.Snapshot, "a")
	if err != nil || !strings.HasPrefix(e.Summary, first) || !strings.Contains(e.Fence.Advice, "kubectl belay fence a --machine "+uuidOfA) {
		t.Errorf("%v: %q, advice %q", err, e.Summary, e.Fence.Advice)
	}
	about, err := diagnosis.Explain(s.Snapshot, diagnosis.Ref{Resource: diagnosis.Nodes, Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	fenced := slices.IndexFunc(about.Findings, func(f diagnosis.Finding) bool { return f.Reason == fencing.NoEvidence })
	if fenced < 0 || !strings.HasPrefix(about.Findings[fenced].Summary, first) || !strings.Contains(about.Findings[fenced].Next[0].Text, uuidOfA) {
		t.Fatalf("%+v", about.Findings)
	}
	steps := slices.Concat(e.Next, about.Findings[fenced].Next)
	named := 0
	for _, step := range steps {
		if strings.HasPrefix(step.Command, "kubectl belay fence a") || strings.HasPrefix(step.Command, "kubectl belay unfence a") {
			if named++; !strings.HasPrefix(step.Command, "kubectl belay fence a --machine "+uuidOfA) {
				t.Errorf("%q names no machine", step.Command)
			}
		}
	}
	if named == 0 {
		t.Errorf("no step is about the fence: %+v", steps)
	}
	jo := diagnosis.Author{Name: "jo", May: decision.Yes}
	states, err := diagnosis.PlanStatement(s.Snapshot, "a", diagnosis.StatementRequest{}, jo)
	if err != nil || states.Risks[0] != first {
		t.Errorf("%v: fence: %q", err, states.Risks)
	}
	ends, err := diagnosis.PlanUnfence(s.Snapshot, "a", "", jo)
	if err != nil || len(ends.Risks) == 0 || ends.Risks[0] != first {
		t.Errorf("%v: unfence: %q", err, ends.Risks)
	}
}

// TestStatementOfOneOfTwoMachines: --machine says which fence a person means. That of the machine which the name does not belong to any more is not held to the
// lease and the condition of the Node, which are the other's.
func TestStatementOfOneOfTwoMachines(t *testing.T) {
	author := diagnosis.Author{Name: "jo", May: decision.Yes}
	for machine, fence := range map[string]string{uuidOfA: "a", uuidOfB: ""} {
		s, second := twoMachines()
		s.Fences = append(s.Fences, second)
		if fence == "" {
			fence = second.Name
		} else { // the second is well
			s.node.Status.Conditions[0].Status = corev1.ConditionTrue
			s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-time.Second)}
		}
		request := diagnosis.StatementRequest{PoweredOff: true, Machine: machine, Reason: "looked", Expires: time.Hour}
		p, err := diagnosis.PlanStatement(s.Snapshot, "a", request, author)
		if err != nil || p.Refusal != "" || p.FenceName() != fence || p.Statement.MachineID != machine {
			t.Errorf("%s: %v, %+v", machine, err, p)
		}
		u, err := diagnosis.PlanUnfence(s.Snapshot, "a", machine, author)
		if err != nil || u.Refusal != "" || u.FenceName() != fence || u.UID != p.UID {
			t.Errorf("%s: %v, %+v", machine, err, u)
		}
	}
}

// TestPowerOffBesideAnEarlierFence: a person may ask for the power-off of the machine that a Node shows, while the fence of an earlier one waits.
func TestPowerOffBesideAnEarlierFence(t *testing.T) {
	s, second := twoMachines()
	author, request := diagnosis.Author{Name: "jo", May: decision.Yes}, diagnosis.PowerOffRequest{Reason: "kubelet is dead"}
	p, err := diagnosis.PlanPowerOff(s.Snapshot, "a", request, author)
	if err != nil || p.Action != diagnosis.RequestPowerOff || p.FenceName() != second.Name || p.UID != "" || p.Request.Boot.MachineID != uuidOfB {
		t.Errorf("%v: %+v", err, p)
	}
	s.Fences = append(s.Fences, second)
	if p, err = diagnosis.PlanPowerOff(s.Snapshot, "a", request, author); err != nil || p.Action != "" || p.UID != "fence-b" {
		t.Errorf("%v: %+v", err, p)
	}
}
