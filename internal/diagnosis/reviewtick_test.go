package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
)

const claimsUnmount, claimsHang = "unmounts the volume, and lists it in use until its next status", "the unmount fails or hangs"

// TestTickWithAnotherUser: a second pod on the same node, which runs and uses the claim, is why the node lists the volume.
func TestTickWithAnotherUser(t *testing.T) {
	for name, now := range map[string]int{"soon": 6, "later": 300} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			m.leaves(now, 2)
			other := podOf("other", "n1", -100)
			other.Name, other.Status = "db-reader", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(-90)}}}}}
			m.Pods = append(m.Pods, other)
			h := hopOf(t, m.Snapshot, HopUnmounted)
			checkSays(t, h.Why, nil, []string{claimsUnmount, claimsHang})
		})
	}
}

// TestTickWithAnInitContainer: the containers of a pod have not ended when its init container has, long before: the other one is in a crash loop.
func TestTickWithAnInitContainer(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(3, 2)
	old := m.Pods[len(m.Pods)-1]
	old.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(-7200)}}}}
	old.Status.ContainerStatuses = []corev1.ContainerStatus{{
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(-20)}},
	}}
	h := hopOf(t, m.Snapshot, HopUnmounted)
	checkSays(t, h.Why, nil, []string{claimsHang}) // the pod was deleted three seconds ago
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	if start := answer.Moves[0].Start.Sub(begin); start < -time.Minute {
		t.Errorf("the move starts at %v, with the end of an init container: the pod was deleted at 0s", start)
	}
}

// TestTickWithClocksApart: a kubelet whose clock is ahead does not make the claim last for longer than two minutes.
func TestTickWithClocksApart(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"an hour": time.Hour, "hostile": 70 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			m.leaves(1800, 1795)
			old := m.Pods[len(m.Pods)-1]
			old.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(begin.Add(2 * time.Second).Add(ahead))
			if name == "hostile" {
				old.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
			}
			h := hopOf(t, m.Snapshot, HopUnmounted)
			checkSays(t, h.Why, nil, []string{claimsUnmount}) // the pod was deleted half an hour ago, with a grace period of 30 s
			s := newScene()
			s.waiter.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.Now.Add(-time.Hour))}}
			s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(-time.Hour)}, new(int64(30))
			s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(s.Now.Add(min(ahead, 70*365*24*time.Hour)))}}}}
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != explain.UnmountFailing {
				t.Errorf("explain: %s (%v): %s, want %s: the pod waits for an hour, and the one before was deleted an hour ago", e.Reason, err, e.Summary, explain.UnmountFailing)
			}
		})
	}
}

// TestTickOfExplainAndTimeline: the two commands do not contradict each other about the same volume.
func TestTickOfExplainAndTimeline(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(105, 100)
	m.Whole = []Resource{Pods, Claims, Volumes, Attachments, Nodes, Drivers, CSINodes, Leases}
	h := hopOf(t, m.Snapshot, HopUnmounted)
	e, err := Explain(m.Snapshot, Ref{Pods, "prod", "db-0"})
	if err != nil {
		t.Fatal(err)
	}
	if (e.Reason == explain.UnmountFailing) != strings.Contains(h.Why, claimsHang) {
		t.Errorf("103 s after the containers ended explain says %s: %s\ntimeline says %s", e.Reason, e.Summary, h.Why)
	}
}

// TestStartBySandboxChange: a kubelet that recreates the sandbox of a pod stops its containers with the event "Stopping container" (killPod),
// long before the pod is deleted. That is not the beginning of the move.
func TestStartBySandboxChange(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.event("old", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.", -3000)
	m.kills("Stopping container app", 1)
	e := m.Events[len(m.Events)-1]
	e.FirstTimestamp, e.Count = at(-3000), 2 // the recorder counts events with the same message
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	v := &answer.Moves[0]
	if start := v.Start.Sub(begin); start < -10*time.Second {
		t.Errorf("the move began at %v or before (%v), %v in all; the kubelet stopped the container at 1s: the bound is false, because the pod lived after it", start, v.StartedBefore, v.End.Sub(*v.Start))
	}
	last := v.Timing[len(v.Timing)-1]
	if last.AtLeast != nil && *last.AtLeast > 20 {
		t.Errorf("%s: at least %.0f s", last.Name, *last.AtLeast)
	}
}

// TestTickWithoutAttach: a kubelet lists only volumes of plugins that attach (k/k pkg/kubelet/volumemanager/volume_manager.go: GetVolumesInUse).
func TestTickWithoutAttach(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(6, 2)
	m.Attachments, m.Nodes[0].Status.VolumesInUse = nil, nil
	m.Drivers = append(m.Drivers, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fuzzDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}})
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range answer.Moves[0].Hops {
		if strings.Contains(h.Why, "nodeStatusUpdateFrequency") || strings.Contains(h.Why, "volumesInUse") || strings.Contains(h.Why, "VolumeAttachment is gone") {
			t.Errorf("%s (%s): %s", h.Name, h.State, h.Why)
		}
	}
	for _, v := range answer.Moves[0].Timing {
		if v.Name == "old node unmounts and publishes that" {
			t.Errorf("a row %q: %+v", v.Name, v)
		}
	}
}

// TestLeastOfNothing: a wait that began in this second has not lasted for more than a second.
func TestNegativeWaits(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(6, 2)
	m.Pods[len(m.Pods)-1].Status.ContainerStatuses[0].State.Terminated.FinishedAt = at(40) // the clock of the node is 35 s ahead
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range answer.Moves[0].Timing {
		if v.Name == "old node unmounts and publishes that" && v.SoFar != nil && *v.SoFar == 0 {
			t.Errorf("%s: <1 s so far, although the clocks contradict each other by 34 s", v.Name)
		}
		if v.Name == "old pod's containers end" && v.Seconds != nil && *v.Seconds > 6 {
			t.Errorf("%s took %.0f s of a move that began 6 s ago", v.Name, *v.Seconds)
		}
	}
	if total := answer.Moves[0].End.Sub(*answer.Moves[0].Start); total > 7*time.Second {
		t.Errorf("%v so far, of a move that began 6 s ago", total)
	}
}

// TestStartAfterTheNextPod: where the next pod was created first, as in a rolling update, the move does not begin with it or before: the old pod
// was deleted later, and nothing says when.
func TestStartAfterTheNextPod(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.kills("Stopping container app", 600)
	m.Now = begin.Add(700 * time.Second)
	for i, s := range map[int]int{2: 603, 3: 605} {
		m.Events[i].FirstTimestamp, m.Events[i].LastTimestamp = at(s), at(s)
	}
	m.va.CreationTimestamp = at(606)
	m.pod.Status.ContainerStatuses[0].State.Running.StartedAt = at(615)
	// The old pod has another name than the new one, as those of a Deployment.
	for _, e := range m.Events {
		if e.InvolvedObject.UID == "old" {
			e.InvolvedObject.Name = "db-old"
		}
	}
	for i, s := range []int{606, 607, 611} {
		when := at(s)
		m.va.ManagedFields[i].Time = &when
	}
	m.Events[4].FirstTimestamp, m.Events[4].LastTimestamp = at(612), at(612)
	m.pod.Status.Conditions[1].LastTransitionTime, m.pod.Status.Conditions[2].LastTransitionTime = at(614), at(616)
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	v := &answer.Moves[0]
	if v.StartedBefore && v.Start.Sub(begin) < time.Minute {
		t.Errorf("hops %v: the move is said to have begun at %v or before, %v in all: the old pod was stopped at 600s", lines(v), v.Start.Sub(begin), v.End.Sub(*v.Start))
	}
}

// TestManyEvents: a hundred thousand events do not make a timeline take long.
func TestManyEvents(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	for i := range 100_000 {
		m.event("old", "Killing", "Stopping container app", 1+i%3)
	}
	began := time.Now()
	if _, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %v", took)
	} else {
		t.Logf("took %v", took)
	}
}

// TestForceDeletedPod: the object of a pod that was deleted by force is gone at once, and the kubelet lets its containers run for the grace period
// of its spec (k/k pkg/kubelet/pod_workers.go: calculateEffectiveGracePeriod). That they have ended is not known, nor that the unmount hangs.
func TestForceDeletedPod(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(200, 195)
	m.Pods = m.Pods[:1] // db-0 was deleted by force, and a new one made; its grace period was 600 s
	m.kills("Stopping container app", 4)
	h := hopOf(t, m.Snapshot, HopUnmounted)
	if strings.Contains(h.Why, claimsHang) && !strings.Contains(h.Why, "containers") && !strings.Contains(h.Why, "grace") {
		t.Errorf("got %q: the containers may run for 400 s more", h.Why)
	}
}
