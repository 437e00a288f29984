package kubectl

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

var updateFences = flag.Bool("update", false, "rewrite the stored texts of fences: read each before you commit it")

const (
	uuidOfA = "4c4c4544-0042-3510-8052-b4c04f4d3332"
	bootOfA = "11111111-2222-3333-4444-555555555555"
)

var fencedNow = time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)

func before(d time.Duration) metav1.Time { return metav1.NewTime(fencedNow.Add(-d)) }

// fencedScene is a pod on node a, which was lost a minute ago, a pod on node b that waits for its volume, and the fence of node a.
type fencedScene struct {
	*diagnosis.Snapshot

	node   *corev1.Node
	lease  *coordinationv1.Lease
	fence  *fencingv1.NodeFence
	source *fencingv1.FenceSource
}

func newFencedScene() fencedScene {
	a, b := node("a", "v"), node("b")
	a.UID, a.Status.NodeInfo.BootID, a.Status.NodeInfo.SystemUUID = "uid-a", bootOfA, strings.ToUpper(uuidOfA)
	a.Status.Conditions[0].Status, a.Status.Conditions[0].LastTransitionTime = corev1.ConditionUnknown, before(time.Minute)
	b.Status.Conditions[0].LastTransitionTime = before(time.Hour)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "a", UID: "lease-a"}}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-100 * time.Second)}
	pv := fixture.PersistentVolume("v", driver, "v")
	claim := fixture.Claim("ns", "data", pv)
	fixture.Bind(pv, claim)
	pod := func(name, at string) *corev1.Pod {
		p := fixture.Pod("ns", name, at, claim.Name)
		p.CreationTimestamp, p.UID, p.Status.Phase = before(time.Minute), types.UID(name), corev1.PodPending
		return p
	}
	holder := pod("db-0", "a")
	holder.Status.Phase = corev1.PodRunning
	holder.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	va := fixture.Attachment(kube.AttachmentName("v", driver, "a"), driver, "a", "v")
	va.CreationTimestamp, va.Status.Attached = before(time.Hour), true
	s := fencedScene{node: a, lease: lease}
	s.fence = &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "fence", ResourceVersion: "7", CreationTimestamp: before(40 * time.Second), Finalizers: []string{kube.FenceFinalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: "a", NodeUID: "uid-a", BootID: bootOfA, MachineID: uuidOfA, Epoch: 3, LastRenewal: kube.Renewal(lease), Release: fencingv1.ReleaseAuto,
		},
		Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(fencing.Fencing), TaintValue: "belay-3"},
	}
	s.source = &fencingv1.FenceSource{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: fencingv1.FenceSourceSpec{Levels: []fencingv1.FenceLevel{
			{Feeds: []fencingv1.Feed{{Agent: "fence_ipmilan", SecretRef: &fencingv1.SecretReference{Namespace: "belay-system", Name: "bmc-password"}}}},
			{Feeds: []fencingv1.Feed{{Agent: "fence_apc", Plug: "3"}, {Agent: "fence_apc", Plug: "4"}}},
		}},
		Status: fencingv1.FenceSourceStatus{
			Bound: &fencingv1.Bound{NodeUID: "uid-a", BootID: bootOfA, MachineID: uuidOfA, HardwareID: uuidOfA, Time: metav1.NewMicroTime(fencedNow.Add(-3 * time.Minute))},
			Conditions: []metav1.Condition{{
				Type: kube.ConditionFenceReady, Status: metav1.ConditionTrue, Reason: "SaidOn", Message: "the switch said On while the node renewed its lease",
				LastTransitionTime: before(24 * time.Hour),
			}},
		},
	}
	held := func(name string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
		l.Spec.HolderIdentity, l.Spec.RenewTime = new("x"), &metav1.MicroTime{Time: fencedNow.Add(-time.Second)}
		return l
	}
	s.Snapshot = &diagnosis.Snapshot{
		Now: fencedNow, AllNamespaces: true,
		Whole: []diagnosis.Resource{
			diagnosis.Pods, diagnosis.Claims, diagnosis.Volumes, diagnosis.Attachments, diagnosis.Nodes, diagnosis.Drivers, diagnosis.CSINodes, diagnosis.Leases,
			diagnosis.Fences, diagnosis.FenceSources,
		},
		Pods: []*corev1.Pod{holder, pod("db-new", "b")}, Claims: []*corev1.PersistentVolumeClaim{claim}, Volumes: []*corev1.PersistentVolume{pv},
		Nodes: []*corev1.Node{a, b}, Attachments: []*storagev1.VolumeAttachment{va},
		Leases: []*coordinationv1.Lease{lease, held("kube-controller-manager"), held("belay-recovery-detector"), held("belay-recovery-fencer"), held("belay-recovery-actor")},
		Fences: []*fencingv1.NodeFence{s.fence}, FenceSources: []*fencingv1.FenceSource{s.source},
	}
	return s
}

// waits makes the fence wait for a reason, as recovery stores it.
func (s fencedScene) waits(r decision.Reason) {
	missing, advice := explain.FenceWait(r)
	s.fence.Status.Missing, s.fence.Status.Advice = []string{missing}, strings.ReplaceAll(advice, "NODE", "a")
}

func (s fencedScene) answers(power string, ago time.Duration) {
	e := fencingv1.Evidence{Power: power, Source: "a", BootID: bootOfA, MachineID: uuidOfA, Nonce: fmt.Sprint(ago), Time: metav1.NewMicroTime(fencedNow.Add(-ago)), Raw: "Status: " + power}
	if power == "Off" {
		e.Class = string(fencing.PoweredOff)
	}
	s.fence.Status.Evidence = append(s.fence.Status.Evidence, e)
}

// is sets a condition of the fence to True.
func (s fencedScene) is(name, reason string, ago time.Duration) {
	s.fence.Status.Conditions = append(s.fence.Status.Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: before(ago)})
}

// taint gives the node the taint of its fence.
func (s fencedScene) taint() {
	s.node.Spec.Taints = append(s.node.Spec.Taints, corev1.Taint{Key: kube.OutOfServiceTaint, Value: "belay-3", Effect: corev1.TaintEffectNoExecute})
	s.node.Annotations[kube.FencedBootAnnotation] = bootOfA
}

// ownController makes belay-controller, with recovery in it, attach and detach.
func (s fencedScene) ownController() {
	for _, l := range s.Leases {
		switch l.Name {
		case "kube-controller-manager":
			l.Name = "belay-controller"
		case "belay-recovery-actor":
			l.Spec.HolderIdentity = nil
		}
	}
}

// gone removes what the fence deletes.
func (s fencedScene) gone() {
	s.Pods, s.Attachments = s.Pods[1:], nil
	s.node.Status.VolumesInUse, s.node.Status.VolumesAttached = nil, nil
	s.Pods[0].Spec.NodeName = ""
}

// reported adds an event of the detector.
func (s fencedScene) reported(r decision.Reason) {
	s.Events = append(s.Events, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a.1"}, Reason: string(r), Message: explain.NotFenced(r), Type: corev1.EventTypeWarning,
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "a", UID: "uid-a"}, ReportingController: diagnosis.Recovery, EventTime: metav1.NewMicroTime(fencedNow.Add(-50 * time.Second)),
	})
	s.Fences = nil
}

// settles makes a node that was off for hours come back: its taint was removed 20 seconds ago.
func (s fencedScene) settles() {
	s.fence.CreationTimestamp = before(3 * time.Hour)
	s.is(kube.ConditionProven, string(fencing.PoweredOff), 3*time.Hour)
	s.is(kube.ConditionVolumesReleased, "Detached", 3*time.Hour)
	s.gone()
	s.node.Status.Conditions[0].Status, s.node.Status.NodeInfo.BootID = corev1.ConditionTrue, "the next one"
	s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
	s.fence.Status.Phase, s.fence.Status.Untainted = fencingv1.Phase(fencing.Releasing), &metav1.Time{Time: fencedNow.Add(-20 * time.Second)}
	s.waits(fencing.SettlingAfterTaint)
}

// states has a person make a statement, 10 seconds ago, that expires after a time.
func (s fencedScene) states(expires time.Duration) {
	s.fence.Spec.Statement = &fencingv1.Statement{By: "alice", Reason: "pulled both plugs", MachineID: uuidOfA, Expires: metav1.NewTime(fencedNow.Add(expires))}
	made := before(10 * time.Second)
	s.fence.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &made, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:statement":{"f:expires":{}}}}`)}}
}

// intends stores a command that may be carried out for a while.
func (s fencedScene) intends(left time.Duration) {
	s.fence.Status.Intents = []fencingv1.Intent{{Action: "Off", Nonce: "i", NotAfter: metav1.NewMicroTime(fencedNow.Add(left))}}
}

// fencedScenes are the situations, with the state and the verdicts of the three commands.
var fencedScenes = map[string]struct {
	make     func(s fencedScene)
	state    diagnosis.EvidenceState
	evidence diagnosis.Verdict
	pod      diagnosis.Verdict
	reason   decision.Reason // of the pod
}{
	"no-evidence": {func(s fencedScene) {
		s.FenceSources = nil
		s.waits(fencing.NoEvidence)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.NoEvidence},
	"requested": {func(s fencedScene) {
		s.fence.Spec.Trigger, s.fence.Spec.Request = fencingv1.TriggerRequested, &fencingv1.Request{By: "alice", Reason: "kubelet does not start"}
		s.answers("Unknown", 3*time.Second)
		s.waits(fencing.SourceSilent)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.SourceSilent},
	"dead-bmc": {func(s fencedScene) {
		s.answers("Unknown", 3*time.Second)
		s.waits(fencing.SourceSilent)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.SourceSilent},
	"under-way": {func(s fencedScene) {
		s.answers("On", 4*time.Second)
		s.fence.Status.Intents = []fencingv1.Intent{{Action: "Off", Nonce: "i", NotAfter: metav1.NewMicroTime(fencedNow.Add(26 * time.Second))}}
	}, diagnosis.BeingFenced, diagnosis.InProgress, diagnosis.InProgress, fencing.AwaitingSource},
	"fencer-down": {func(s fencedScene) {
		s.fence.CreationTimestamp = before(10 * time.Minute)
		s.fence.Status.Question = &fencingv1.Question{Nonce: "q", Time: metav1.NewMicroTime(fencedNow.Add(-9 * time.Minute))}
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.AwaitingSource},
	"evicting": {func(s fencedScene) {
		s.answers("Off", 3*time.Second)
		s.is(kube.ConditionProven, string(fencing.PoweredOff), 3*time.Second)
		s.taint()
		s.fence.Status.Phase = fencingv1.Phase(fencing.Evicting)
	}, diagnosis.ProvenOff, diagnosis.InProgress, diagnosis.InProgress, fencing.AwaitingPods},
	"moved": {func(s fencedScene) {
		s.answers("Off", 30*time.Second)
		s.is(kube.ConditionProven, string(fencing.PoweredOff), 30*time.Second)
		s.is(kube.ConditionVolumesReleased, "Detached", 20*time.Second)
		s.taint()
		s.gone()
		s.fence.Status.Phase = fencingv1.Phase(fencing.Moved)
		s.waits(fencing.AwaitingBoot)
	}, diagnosis.ProvenOff, diagnosis.Clear, diagnosis.InProgress, explain.Scheduling},
	"contradicted": {func(s fencedScene) {
		s.answers("Off", 30*time.Second)
		s.is(kube.ConditionProven, string(fencing.PoweredOff), 30*time.Second)
		s.is(kube.ConditionContradicted, "SignOfLife", 10*time.Second)
		s.taint()
		s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
		s.fence.Status.Phase = fencingv1.Phase(fencing.Detaching)
		s.waits(fencing.Contradicted)
	}, diagnosis.Contradicted, diagnosis.Unsafe, diagnosis.Unsafe, fencing.Contradicted},
	"request-withdrawn": {func(s fencedScene) {
		s.fence.Spec.Trigger = fencingv1.TriggerRemediation
		s.intends(-20 * time.Second)
		s.answers("On", 4*time.Second)
		s.waits(fencing.RequestWithdrawn)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.RequestWithdrawn},
	"cancelled": {func(s fencedScene) {
		s.node.Status.Conditions[0].Status = corev1.ConditionTrue
		s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
		s.fence.Status.Phase, s.fence.Finalizers = fencingv1.Phase(fencing.Cancelled), nil
		s.is(kube.ConditionEnded, string(fencing.Cancelled), 15*time.Second)
		s.answers("On", 20*time.Second)
		s.waits(fencing.NotOff)
		s.fence.Spec.Statement = &fencingv1.Statement{By: "alice", Reason: "pulled both plugs", MachineID: uuidOfA, Expires: metav1.NewTime(fencedNow.Add(time.Hour))}
	}, diagnosis.Fenceable, diagnosis.Clear, diagnosis.Blocked, explain.HeldByRunningPod},
	"cancelled-after-command": {func(s fencedScene) { // opted out while the command was sent
		s.node.Annotations[kube.FenceOptOutAnnotation] = "true"
		s.fence.Status.Phase, s.fence.Finalizers = fencingv1.Phase(fencing.Cancelled), nil
		s.is(kube.ConditionEnded, string(fencing.Cancelled), 15*time.Second)
		s.intends(-20 * time.Second)
		s.answers("Off", 20*time.Second)
	}, diagnosis.NotFenceable, diagnosis.Blocked, diagnosis.Unsafe, explain.NodeNotReady},
	"ready": {fencedScene.evicts, diagnosis.ProvenOff, diagnosis.InProgress, diagnosis.InProgress, fencing.AwaitingPods},
	"releasing": {func(s fencedScene) {
		s.answers("Off", 3*time.Minute)
		s.is(kube.ConditionProven, string(fencing.PoweredOff), 3*time.Minute)
		s.gone()
		s.node.Status.Conditions[0].Status, s.node.Status.NodeInfo.BootID = corev1.ConditionTrue, "the next one"
		s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
		s.fence.Status.Phase = fencingv1.Phase(fencing.Releasing)
		s.waits(fencing.IntentOpen)
		s.intends(10 * time.Second)
		s.source.Status.Refused = []fencingv1.RefusedLogins{{Times: 1}}
	}, diagnosis.BeingReleased, diagnosis.InProgress, diagnosis.InProgress, explain.Scheduling},
	"settling": {fencedScene.settles, diagnosis.BeingReleased, diagnosis.InProgress, diagnosis.InProgress, explain.Scheduling},
	"cancels": {func(s fencedScene) { // the owner has opted out after the command was stored
		s.fence.CreationTimestamp = before(10 * time.Minute)
		s.node.Annotations[kube.FenceOptOutAnnotation] = "true"
		s.intends(10 * time.Second)
		s.waits(fencing.IntentOpen)
	}, diagnosis.BeingFenced, diagnosis.InProgress, diagnosis.InProgress, fencing.IntentOpen},
	"statement-too-long": {func(s fencedScene) {
		s.FenceSources = nil
		s.states(48 * time.Hour)
		s.waits(fencing.NoEvidence)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.NoEvidence},
	"foreign-taint": {func(s fencedScene) {
		s.evicts()
		s.node.Spec.Taints[0].Value = "nodeshutdown"
		s.node.Status.Conditions = append(s.node.Status.Conditions, corev1.NodeCondition{Type: "MaintenanceInProgress", Status: corev1.ConditionTrue})
	}, diagnosis.ProvenOff, diagnosis.InProgress, diagnosis.InProgress, fencing.AwaitingPods},
	"sign-of-life": {func(s fencedScene) { s.reported(fencing.SignOfLife) }, diagnosis.Held, diagnosis.Blocked, diagnosis.Unsafe, fencing.SignOfLife},
	"wrong-statement": {func(s fencedScene) {
		s.contradicts()
		s.fence.Status.Evidence, s.fence.Status.Conditions[0].Reason = nil, string(fencing.Stated)
		s.FenceSources = nil
		s.states(time.Hour)
	}, diagnosis.Contradicted, diagnosis.Unsafe, diagnosis.Unsafe, fencing.Contradicted},
	"options-refused": {func(s fencedScene) {
		s.Fences = nil
		s.node.Status.Conditions[0].Status = corev1.ConditionTrue
		s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
		c := &s.source.Status.Conditions[0]
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(explain.OptionsRefused), "the agent has no option ipaddress"
	}, diagnosis.NotFenceable, diagnosis.Blocked, diagnosis.Blocked, explain.HeldByRunningPod},
	"deleted-machine-on": {func(s fencedScene) {
		s.Nodes = s.Nodes[1:]
		s.fence.Spec.Trigger = fencingv1.TriggerNodeDeleted
		s.answers("On", 4*time.Second)
		s.waits(fencing.NodeDeletedMachineOn)
		s.ownController()
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.NodeDeletedMachineOn},
	"earlier-machine": {func(s fencedScene) { s.waits(fencing.EarlierMachine) }, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.EarlierMachine},
	"held":            {func(s fencedScene) { s.reported(fencing.TooManySilent) }, diagnosis.Held, diagnosis.Blocked, diagnosis.Unsafe, fencing.TooManySilent},
	"secret-unreadable": {func(s fencedScene) {
		s.AllNamespaces, s.Namespaces = false, []string{"ns"}
		s.node.Status.Conditions[0].Status, s.Fences = corev1.ConditionTrue, nil
		s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
		s.source.Status.Conditions[0] = metav1.Condition{
			Type: kube.ConditionFenceReady, Status: metav1.ConditionFalse, Reason: "SecretUnreadable", LastTransitionTime: before(time.Hour),
			Message: `read Secret belay-system/bmc-password: secrets "bmc-password" not found`,
		}
	}, diagnosis.NotFenceable, diagnosis.Blocked, diagnosis.Blocked, explain.HeldByRunningPod},
	"confirming": {func(s fencedScene) {
		s.answers("Off", 20*time.Second)
		s.is(kube.ConditionProven, string(fencing.PoweredOff), 20*time.Second)
		s.fence.Status.Phase = fencingv1.Phase(fencing.Tainting)
		s.waits(fencing.SourceSilent)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.SourceSilent},
	"to-end": {func(s fencedScene) { // a client deleted the fence, and its machine never comes back
		s.FenceSources = nil
		s.is(kube.ConditionStorageFenced, "CutsAtUnpublish", 3*time.Minute)
		s.fence.DeletionTimestamp = &metav1.Time{Time: fencedNow.Add(-2 * time.Minute)}
		s.waits(fencing.AwaitingReturn)
	}, diagnosis.BeingFenced, diagnosis.Blocked, diagnosis.Unsafe, fencing.AwaitingReturn},
	"statement": {func(s fencedScene) {
		s.FenceSources = nil
		s.states(time.Hour)
		s.is(kube.ConditionProven, string(fencing.Stated), 2*time.Second)
		s.fence.Status.Phase = fencingv1.Phase(fencing.Tainting)
	}, diagnosis.BeingFenced, diagnosis.InProgress, diagnosis.InProgress, fencing.AwaitingSource},
}

// TestFencedNodes compares what the commands print about a node that is being fenced with stored texts.
func TestFencedNodes(t *testing.T) {
	for name, tc := range fencedScenes {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			tc.make(s)
			evidence, err := diagnosis.Evidence(s.Snapshot, "a")
			if err != nil {
				t.Fatal(err)
			}
			pod := diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "ns", Name: "db-new"}
			about, err := diagnosis.Explain(s.Snapshot, pod)
			if err != nil {
				t.Fatal(err)
			}
			ofNode, err := diagnosis.Explain(s.Snapshot, diagnosis.Ref{Resource: diagnosis.Nodes, Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			if evidence.State != tc.state || evidence.Verdict != tc.evidence || about.Verdict != tc.pod || about.Reason != tc.reason {
				t.Errorf("evidence is %s, %s, want %s, %s; the pod is %s, %s, want %s, %s", evidence.State, evidence.Verdict, tc.state, tc.evidence,
					about.Verdict, about.Reason, tc.pod, tc.reason)
			}
			author := diagnosis.Author{Name: "alice", May: decision.Yes}
			request := diagnosis.StatementRequest{PoweredOff: true, Machine: strings.ToUpper(uuidOfA), Reason: "pulled both plugs", Expires: time.Hour}
			state, err := diagnosis.PlanStatement(s.Snapshot, "a", request, author)
			if err != nil {
				t.Fatal(err)
			}
			text := "$ kubectl belay evidence node/a\n" + EvidenceText(&evidence) + "\n$ kubectl belay explain pod/db-new -n ns\n" + texted(t, about) +
				"\n$ kubectl belay explain node/a\n" + texted(t, ofNode) + "\n$ kubectl belay fence a\n" + fencePlanText(style{}, &state, verbConfirm, s.Snapshot)
			if len(s.Attachments) > 0 {
				force, err := diagnosis.PlanForceDetach(s.Snapshot, s.Attachments[0].Name)
				if err != nil {
					t.Fatal(err)
				}
				text += "\n$ kubectl belay force-detach va/" + force.Subject.Name + "\n" + planText(style{}, &force, s.Snapshot)
			}
			if release, err := diagnosis.PlanUnfence(s.Snapshot, "a", "", author); err == nil {
				text += "\n$ kubectl belay unfence a\n" + fencePlanText(style{}, &release, verbDelete, s.Snapshot)
			}
			checkFenceText(t, name, text)
		})
	}
}

func texted(t *testing.T, e diagnosis.Explanation) string {
	t.Helper()
	var out strings.Builder
	if err := Text(&out, e); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func checkFenceText(t *testing.T, name, got string) {
	t.Helper()
	if strings.Contains(got, "bmc-password") || strings.Contains(got, "out-of-service=") && name != "held" && name != "cancelled-after-command" {
		t.Errorf("it names a Secret, or advises to set the taint by hand while recovery fences:\n%s", got)
	}
	file := filepath.Join("testdata", "fences", name+".txt")
	if *updateFences {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("text (-stored +now), rewrite it with -update if that is better:\n%s", diff)
	}
}
