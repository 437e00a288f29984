package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// condition adds a condition that is True to a NodeFence.
func condition(f *fencingv1.NodeFence, kind, reason string, since int) {
	f.Status.Conditions = append(f.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: at(since)})
}

func moveOf(t *testing.T, m *moved) *Move {
	t.Helper()
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil || len(answer.Moves) != 1 {
		t.Fatalf("got %d moves and %v, want one", len(answer.Moves), err)
	}
	checkTimeline(t, 0, answer)
	return &answer.Moves[0]
}

// checkMove: the hops begin with these, and the move at a second.
func checkMove(t *testing.T, v *Move, want string, start int) {
	t.Helper()
	if got := strings.Join(lines(v), ", "); !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if v.Start == nil || !v.Start.Equal(begin.Add(time.Duration(start)*time.Second)) {
		t.Errorf("begins at %v, want %d s", v.Start.Sub(begin), start)
	}
}

// TestFenceOfAnotherBoot: a fence that is not over says nothing of a volume that left a later boot of the name, or another machine, as each node
// leaves one. The volume was attached there after the proof, or its VolumeAttachment names the later boot.
func TestFenceOfAnotherBoot(t *testing.T) {
	const day = 24 * 60 * 60
	t.Run("another machine has the name, and a person is to release the fence", func(t *testing.T) {
		m := newMoved("belay-controller", "belay-attacher")
		m.belayEvents() // the pod came to n1 at -100
		f := m.fencedAt(fencing.Moved, fencing.PoweredOff, -5*day)
		f.CreationTimestamp, f.Spec.Release = at(-5*day-20), fencingv1.ReleaseManual
		f.Spec.LastRenewal = begin.Add(-(5*day+50)*time.Second).Format(time.RFC3339Nano) + " n1 uid"
		checkMove(t, moveOf(t, m), "pod deleted: Unknown by 4s, containers ended: Unknown by 4s, ", 4)
	})
	t.Run("the machine has restarted, and the command to switch it off may still come", func(t *testing.T) {
		m := newMoved("belay-controller", "belay-attacher")
		m.belayEvents() // with Restarted recovery goes from Fencing to Releasing, and takes nothing
		f := m.fencedAt(fencing.Releasing, fencing.Restarted, -10)
		f.CreationTimestamp, f.Spec.LastRenewal = at(-35), begin.Add(-60*time.Second).Format(time.RFC3339Nano)+" n1 uid"
		f.Status.Intents = []fencingv1.Intent{{Action: "Off", Nonce: "n", NotAfter: metav1.NewMicroTime(begin.Add(15 * time.Second))}}
		checkMove(t, moveOf(t, m), "pod deleted: Unknown by 4s, containers ended: Unknown by 4s, ", 4)
	})
	t.Run("the Node was made again, and nothing is proven about the machine before", func(t *testing.T) {
		m := newMoved("belay-controller", "belay-attacher")
		node := m.leaves(20, 15) // a healthy kubelet unmounts
		node.UID, node.Status.NodeInfo = "second", corev1.NodeSystemInfo{BootID: "boot-2", SystemUUID: "machine-2"}
		m.va.Annotations = map[string]string{kube.NodeUIDAnnotation: "second", kube.BootIDAnnotation: "boot-2", kube.SystemUUIDAnnotation: "machine-2"}
		f := m.fencedAt(fencing.Fencing, "", 0)
		f.Spec.NodeUID, f.Spec.BootID, f.Spec.MachineID, f.Spec.Trigger = "first", "boot-1", "machine-1", fencingv1.TriggerNodeDeleted
		checkMove(t, moveOf(t, m), "pod deleted: 0s, containers ended: 2s, unmounted: Waiting, ", 0)
	})
}

// TestContradictedFence: the boot that was proven to have ended renews its lease. So nothing limits the end of its containers, which may write.
func TestContradictedFence(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.Events[2].Type = corev1.EventTypeWarning
	condition(m.fencedAt(fencing.Moved, fencing.Stated, 3), kube.ConditionContradicted, "LeaseRenewed", 40)
	h := hopOf(t, m.Snapshot, HopEnded)
	if h.NotAfter != nil || strings.Contains(h.Why, "is that they had ended by then") {
		t.Errorf("containers ended: by %v: %s", h.NotAfter, h.Why)
	}
}

// storageFenced is a fence as recovery stores it when it may take single volumes (internal/fencing/storage.go: storeProven): it stays in Fencing and
// has no condition Proven. The condition is StorageFenced (internal/recovery/storage.go: proveVolumes).
func (m *moved) storageFenced(since int) {
	f := m.fencedAt(fencing.Fencing, "", 0)
	condition(f, kube.ConditionStorageFenced, "CutsAtUnpublish", since)
	m.Drivers = append(m.Drivers, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{
		Name: fuzzDriver, Annotations: map[string]string{kube.CutsAtUnpublishAnnotation: "true"},
	}})
}

// TestStorageFencedAsStored: a volume that recovery took from a boot that may run begins its move with the silence of the node, and nothing says when
// its containers ended.
func TestStorageFencedAsStored(t *testing.T) {
	t.Run("the node is silent", func(t *testing.T) {
		m := newMoved("belay-controller", "belay-attacher")
		m.belayEvents()
		m.Events[2].Type = corev1.EventTypeWarning
		m.storageFenced(3)
		checkMove(t, moveOf(t, m), "node silent: -30s, ", -30)
	})
	t.Run("its containers may run, and the event of the detach is lost", func(t *testing.T) {
		m := newMoved("belay-controller", "belay-attacher")
		m.belayEvents()
		m.Events = slices.Delete(m.Events, 2, 4)
		m.storageFenced(3)
		if h := hopOf(t, m.Snapshot, HopEnded); h.NotAfter != nil {
			t.Errorf("containers ended: by %v: %s", h.NotAfter.Sub(begin), h.Why)
		}
	})
}

// TestDetachWithoutProof: kube-controller-manager's timer takes the volume from a node that is silent, while recovery has no evidence about the
// machine. That the detach was requested does not say that the containers had ended.
func TestDetachWithoutProof(t *testing.T) {
	m := newMoved("kube-controller-manager", "csi-attacher")
	m.stays(true, PodsIn("prod"))
	m.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	m.va.DeletionTimestamp, m.va.Finalizers, m.Now = new(at(370)), []string{"external-attacher/disk"}, begin.Add(400*time.Second)
	m.fencedAt(fencing.Fencing, "", 0)
	if h := hopOf(t, m.Snapshot, HopEnded); h.NotAfter != nil {
		t.Errorf("containers ended: by %v: %s", h.NotAfter.Sub(begin), h.Why)
	}
}

// TestWhatAFenceSaysOfTheLease: the last renewal is that of the last silence, and no older than the node.
func TestWhatAFenceSaysOfTheLease(t *testing.T) {
	t.Run("silent again", func(t *testing.T) { // the node renewed its lease after the fence began, and fell silent at 20
		m := newMoved("belay-controller", "belay-attacher")
		m.leaves(100, -30).Status.Conditions[0].Status = corev1.ConditionUnknown
		m.old().Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		f := m.fencedAt(fencing.Evicting, fencing.PoweredOff, 60)
		f.Status.SilentAgain = &fencingv1.SilentAgain{
			Renewal: begin.Add(20*time.Second).Format(time.RFC3339Nano) + " n1 uid", Time: metav1.NewMicroTime(begin.Add(45 * time.Second)),
		}
		h := hopOf(t, m.Snapshot, HopSilent)
		if h.At == nil || !h.At.Equal(begin.Add(20*time.Second)) {
			t.Errorf("%s: at %v, by %v: %s; its last renewal is of 20 s", h.Name, h.At, h.NotAfter, h.Why)
		}
	})
	t.Run("hostile", func(t *testing.T) {
		m := newMoved("belay-controller", "belay-attacher")
		m.belayEvents() // the pod came to n1 at -100, so the node was heard then
		m.fencedAt(fencing.Moved, fencing.PoweredOff, 3).Spec.LastRenewal = "1970-01-01T00:00:01Z n1 uid"
		if v := moveOf(t, m); v.Start.Before(begin.Add(-100 * time.Second)) {
			t.Errorf("the move begins at %v", v.Start)
		}
	})
}

// TestPodDeletedBeforeTheSilence: the pod was deleted and its containers had ended, as the kubelet reported, and then the node fell silent. The move
// began with the deletion, and the end is known.
func TestPodDeletedBeforeTheSilence(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(100, 15).Status.Conditions[0].Status = corev1.ConditionUnknown
	f := m.fencedAt(fencing.Evicting, fencing.PoweredOff, 70)
	f.CreationTimestamp, f.Spec.LastRenewal = at(45), begin.Add(20*time.Second).Format(time.RFC3339Nano)+" n1 uid"
	v := moveOf(t, m)
	if !v.Start.Equal(begin) {
		t.Errorf("begins at %v, although the pod was deleted at 0s", v.Start.Sub(begin))
	}
	if h := hopOf(t, m.Snapshot, HopEnded); h.At == nil || !h.At.Equal(at(2).Time) {
		t.Errorf("containers ended: at %v, by %v: %s; the status of the pod has 2s", h.At, h.NotAfter, h.Why)
	}
}

// TestFenceOfANodeWithoutTheVolume: a Job's pod used the claim on n1 an hour ago. n1 has no VolumeAttachment and lists nothing: no proof about its
// machine is what the next pod waits for.
func TestFenceOfANodeWithoutTheVolume(t *testing.T) {
	m := newMoved("kube-controller-manager", "csi-attacher")
	m.stays(false, PodsIn("prod"))
	m.Attachments, m.Events = nil, nil
	m.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	job := podOf("job", "n1", -4000)
	job.Name, job.Status = "backup", corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{
		{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(-3600)}}},
	}}
	m.Pods = append(m.Pods, job)
	m.fencedAt(fencing.Fencing, "", 0)
	for _, h := range moveOf(t, m).Hops {
		if h.Name == HopProven && h.State == HopWaiting {
			t.Errorf("%s waits: %s", h.Name, h.Why)
		}
	}
}
