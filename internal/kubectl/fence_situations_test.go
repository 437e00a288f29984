package kubectl

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// evicts makes the fence a proven one, of a node that still counts as Ready: recovery is faster than the node lifecycle controller.
func (s fencedScene) evicts() {
	s.answers("Off", 3*time.Second)
	s.is(kube.ConditionProven, string(fencing.PoweredOff), 3*time.Second)
	s.taint()
	s.fence.Status.Phase = fencingv1.Phase(fencing.Evicting)
	s.node.Status.Conditions[0].Status = corev1.ConditionTrue
	s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-15 * time.Second)}
	s.fence.Spec.LastRenewal = kube.Renewal(s.lease)
}

// contradicts makes the fenced boot live, on a node that is Ready again.
func (s fencedScene) contradicts() {
	s.evicts()
	s.is(kube.ConditionContradicted, "SignOfLife", 10*time.Second)
	s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
	s.waits(fencing.Contradicted)
}

// detached removes the VolumeAttachments, and leaves the lists of the node.
func (s fencedScene) detached() {
	s.fence.Status.Phase = fencingv1.Phase(fencing.Detaching)
	s.Attachments, s.Pods = nil, s.Pods[1:]
}

// listed are what stuck and orphans list, without what usually ends by itself, as "verdict reason subject".
func listed(s fencedScene) (stuck, orphans string) {
	var lines [2][]string
	list, of := diagnosis.Stuck(s.Snapshot, "", 0), diagnosis.Orphans(s.Snapshot, false)
	line := func(f *diagnosis.Finding) string {
		return string(f.Verdict) + " " + string(f.Reason) + " " + f.Subject.String()
	}
	for i := range list.Items {
		lines[0] = append(lines[0], line(&list.Items[i]))
	}
	for i := range of.Items {
		lines[1] = append(lines[1], line(&of.Items[i].Finding))
	}
	return strings.Join(lines[0], "; "), strings.Join(lines[1], "; ")
}

// TestListsConsultFences: stuck lists a fence whose evidence is contradicted, also if no pod waits; stuck and orphans call nothing unsafe that a
// proven fence of the boot explains.
func TestListsConsultFences(t *testing.T) {
	for name, tc := range map[string]struct {
		make           func(s fencedScene)
		stuck, orphans string
	}{
		"contradicted, and no pod waits": {func(s fencedScene) { s.contradicts(); s.Pods = nil }, "Unsafe Contradicted nodes/a", "Unsafe Contradicted volumeattachments/"},
		"contradicted, and over": {func(s fencedScene) {
			s.contradicts()
			s.fence.Status.Phase, s.fence.Finalizers, s.Pods, s.node.Spec.Taints = fencingv1.Phase(fencing.Released), nil, nil, nil
			s.node.Status.VolumesInUse, s.node.Status.VolumesAttached, s.Attachments = nil, nil, nil
		}, "", ""},
		"evicting while Ready":                 {func(s fencedScene) { s.evicts() }, "", ""},
		"detached while Ready":                 {func(s fencedScene) { s.evicts(); s.detached() }, "Blocked NoAttachController pods/db-new", ""},
		"a pod of the node is still listed":    {func(s fencedScene) { s.evicts(); pods := s.Pods; s.detached(); s.Pods = pods[:1] }, "", ""},
		"nothing is proven, and no attachment": {func(s fencedScene) { s.evicts(); s.detached(); s.fence.Status.Phase = fencingv1.Phase(fencing.Fencing) }, "Unsafe UsedWithoutAttachment pods/db-new", "Unsafe UsedWithoutAttachment nodes/a"},
		"another boot, and no attachment": {func(s fencedScene) {
			s.evicts()
			s.detached()
			s.node.Status.NodeInfo.BootID = "another"
		}, "Unsafe UsedWithoutAttachment pods/db-new", "Unsafe UsedWithoutAttachment nodes/a"},
		"the storage cuts this driver's volumes": {func(s fencedScene) { s.cut(map[string]string{kube.CutsAtUnpublishAnnotation: "true"}) }, "Blocked NoAttachController pods/db-new", ""},
		"the storage cuts other volumes":         {func(s fencedScene) { s.cut(nil) }, "Unsafe UsedWithoutAttachment pods/db-new", "Unsafe UsedWithoutAttachment nodes/a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			tc.make(s)
			stuck, orphans := listed(s)
			if stuck != tc.stuck || !strings.HasPrefix(orphans, tc.orphans) || (tc.orphans == "") != (orphans == "") {
				t.Errorf("stuck lists %q, want %q; orphans lists %q, want %q", stuck, tc.stuck, orphans, tc.orphans)
			}
		})
	}
}

// cut makes recovery take single volumes, of a driver with the annotations.
func (s fencedScene) cut(annotations map[string]string) {
	s.evicts()
	s.detached()
	s.node.Spec.Taints, s.fence.Status.Evidence, s.fence.Status.Conditions = nil, nil, nil
	s.fence.Status.Phase = fencingv1.Phase(fencing.Fencing)
	s.is(kube.ConditionStorageFenced, string(fencing.StorageFenced), 5*time.Second)
	s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: driver, Annotations: annotations}}}
}

// TestOrphansNameTheFence: with --all it shows which fence took the volume.
func TestOrphansNameTheFence(t *testing.T) {
	s := newFencedScene()
	s.evicts()
	s.detached()
	list := diagnosis.Orphans(s.Snapshot, true)
	if len(list.Items) != 1 || list.Items[0].Verdict != diagnosis.InProgress || !strings.Contains(list.Items[0].Summary, "because recovery took it from the boot that it fenced") {
		t.Errorf("%+v", list.Items)
	}
	about, err := diagnosis.Explain(s.Snapshot, diagnosis.Ref{Resource: diagnosis.Nodes, Name: "a"})
	if err != nil || len(about.Findings) != 1 || about.Verdict != diagnosis.InProgress {
		t.Errorf("%v: one finding about the node is enough: %+v", err, about.Findings)
	}
}

// TestMovedFromABootThatLives: another node has the volume, its pod runs there, and the boot that was proven to have ended lists the volume in
// use. Nothing waits, and two machines may write.
func TestMovedFromABootThatLives(t *testing.T) {
	for name, lease := range map[string]time.Duration{"renews its lease": 2 * time.Second, "is silent again": 90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			s.contradicts()
			s.detached()
			s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-lease)}
			if lease > time.Minute {
				s.node.Status.Conditions[0].Status = corev1.ConditionUnknown
			}
			va := fixture.Attachment(kube.AttachmentName("v", driver, "b"), driver, "b", "v")
			va.CreationTimestamp, va.Status.Attached = before(30*time.Second), true
			s.Attachments = []*storagev1.VolumeAttachment{va}
			s.Pods[0].Status.Phase = corev1.PodRunning
			s.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			for _, subject := range []diagnosis.Ref{{Resource: diagnosis.Volumes, Name: "v"}, {Resource: diagnosis.Claims, Namespace: "ns", Name: "data"}, {Resource: diagnosis.Pods, Namespace: "ns", Name: s.Pods[0].Name}} {
				about, err := diagnosis.Explain(s.Snapshot, subject)
				if err != nil || about.Verdict != diagnosis.Unsafe || about.Reason != fencing.Contradicted || !strings.Contains(about.Summary, "recovery took it") {
					t.Errorf("%s, %v: %s", subject, err, texted(t, about))
				}
			}
		})
	}
}

// TestTaintByHand: a taint that no fence explains has a next step, also without volumes.
func TestTaintByHand(t *testing.T) {
	s := newFencedScene()
	s.Fences, s.Attachments, s.Pods = nil, nil, nil
	s.node.Status.VolumesInUse, s.node.Status.VolumesAttached = nil, nil
	s.node.Status.Conditions[0].Status = corev1.ConditionTrue
	s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-2 * time.Second)}
	s.node.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	about, err := diagnosis.Explain(s.Snapshot, diagnosis.Ref{Resource: diagnosis.Nodes, Name: "a"})
	if err != nil || !strings.Contains(texted(t, about), "kubectl taint node a node.kubernetes.io/out-of-service-") {
		t.Errorf("%v: it lacks the step that removes the taint:\n%s", err, texted(t, about))
	}
}

// TestTimerUnderAHold: no clock promises a detach by force that recovery holds back, and none hides a timer that runs.
func TestTimerUnderAHold(t *testing.T) {
	recorded := func(s fencedScene, boot string) {
		s.Attachments[0].Annotations = map[string]string{
			kube.BootIDAnnotation: boot, kube.SystemUUIDAnnotation: uuidOfA, kube.DetachRequestedAnnotation: fencedNow.Add(-time.Minute).Format(time.RFC3339),
		}
	}
	renews := func(s fencedScene) { s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-4 * time.Second)} }
	for name, tc := range map[string]struct {
		make func(s fencedScene)
		held bool
	}{
		"the switch says On":    {func(s fencedScene) { s.answers("On", 4*time.Second); s.waits(fencing.NotOff) }, true},
		"it said so long ago":   {func(s fencedScene) { s.answers("On", 40*time.Second); s.waits(fencing.SourceSilent) }, false},
		"another boot has it":   {func(s fencedScene) { s.answers("On", 4*time.Second); recorded(s, "another") }, false},
		"it renews its lease":   {func(s fencedScene) { s.Fences = nil; renews(s); recorded(s, bootOfA) }, true},
		"under another boot":    {func(s fencedScene) { s.Fences = nil; renews(s); recorded(s, "another") }, false},
		"silent":                {func(s fencedScene) { s.Fences = nil; recorded(s, bootOfA) }, false},
		"recovery is not in it": {func(s fencedScene) { s.answers("On", 4*time.Second); s.Leases[4].Spec.HolderIdentity = new("x") }, false},
		"upstream's controller": {func(s fencedScene) { s.answers("On", 4*time.Second); s.Leases[1].Name = "kube-controller-manager" }, false},
		"the Node was deleted, On": {func(s fencedScene) {
			s.Nodes[0].Name = "c"
			s.answers("On", 4*time.Second)
			s.waits(fencing.NodeDeletedMachineOn)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			s.ownController()
			tc.make(s)
			about, err := diagnosis.Explain(s.Snapshot, diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "ns", Name: "db-new"})
			if err != nil {
				t.Fatal(err)
			}
			clock := strings.Join(about.Findings[0].Clock, "\n")
			if held, promised := strings.Contains(clock, "does not detach the volume by force while"), strings.Contains(clock, "detaches the volume by force"); held != tc.held || promised == tc.held {
				t.Errorf("held: %t, promised: %t; want held: %t:\n%s", held, promised, tc.held, clock)
			}
		})
	}
}

// TestForceConsultsFence: while the machine is known to run, nothing permits the detach; a fresh proof takes the risk away; an old one, or
// one about another boot, does not.
func TestForceConsultsFence(t *testing.T) {
	for name, tc := range map[string]struct {
		make          func(s fencedScene)
		refused, safe bool
		says          string
	}{
		"the switch says On":              {func(s fencedScene) { s.answers("On", 4*time.Second) }, true, false, "no force is needed"},
		"it said On, and does not answer": {func(s fencedScene) { s.answers("On", 40*time.Second) }, false, false, "as soon as the machine is proven off"},
		"of another machine": {func(s fencedScene) {
			s.answers("On", 4*time.Second)
			s.fence.Status.Evidence[0].MachineID = "another"
		}, false, false, "as soon as the machine is proven off"},
		"contradicted": {fencedScene.contradicts, true, false, "shows a sign of life"},
		"proven":       {fencedScene.evicts, false, true, "no force is needed"},
		"proven, long ago": {func(s fencedScene) {
			s.evicts()
			s.fence.Status.Evidence = nil
			s.answers("Off", time.Hour)
		}, false, false, "no force is needed"},
		"proven, and its lease was renewed": {func(s fencedScene) { s.evicts(); s.fence.Spec.LastRenewal = "earlier" }, false, false, "no force is needed"},
		"Off is not confirmed yet":          {func(s fencedScene) { s.answers("Off", time.Second) }, false, false, "as soon as the machine is proven off"},
		"another boot has it": {func(s fencedScene) {
			s.evicts()
			s.Attachments[0].Annotations = map[string]string{kube.BootIDAnnotation: "another"}
		}, false, false, "still need the volume"},
		"attached after the fence began": {func(s fencedScene) {
			s.answers("On", 4*time.Second)
			s.Attachments[0].CreationTimestamp = before(time.Second)
		}, false, false, "may still run"},
		"its lease is renewed": {func(s fencedScene) {
			s.Fences = nil
			s.lease.Spec.RenewTime = &metav1.MicroTime{Time: fencedNow.Add(-4 * time.Second)}
		}, false, false, "runs: it renewed its lease at"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFencedScene()
			tc.make(s)
			plan, err := diagnosis.PlanForceDetach(s.Snapshot, s.Attachments[0].Name)
			if err != nil {
				t.Fatal(err)
			}
			text := planText(style{}, &plan, s.Snapshot)
			if refused := plan.Refusal != ""; refused != tc.refused || refused == (plan.Action != "") || (len(plan.Risks) == 0) != tc.safe || !strings.Contains(text, tc.says) {
				t.Errorf("want refused: %t, safe: %t, and %q:\n%s", tc.refused, tc.safe, tc.says, text)
			}
		})
	}
}
