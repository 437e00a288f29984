package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

const setting = "nodeStatusUpdateFrequency, 10 s by default; this node's own setting was not read"

// leaves makes the old pod's containers end on n1 at second 2 while the Node lists the volume; the pod of the move waits on n2, and it is now
// that second. The status that the Node shows is of second status.
func (m *moved) leaves(now, status int) *corev1.Node {
	m.stays(true, PodsIn("prod"))
	old := podOf("old", "n1", -100)
	deleted := at(30)
	old.Name, old.DeletionTimestamp, old.DeletionGracePeriodSeconds, old.Finalizers = "db-old", &deleted, new(int64(30)), []string{"example.com/keep"}
	old.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(2)}}}}
	m.Pods, m.Now = append(m.Pods, old), begin.Add(time.Duration(now)*time.Second)
	node := m.Nodes[0]
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: at(status)}}
	return node
}

// old is the pod that leaves n1. A finalizer keeps its object, so that the object does not say that the kubelet has not unmounted.
func (m *moved) old() *corev1.Pod { return m.Pods[len(m.Pods)-1] }

// arrives makes the volume attached to n2 and reported there, where no container has started.
func (m *moved) arrives(now int) *corev1.Node {
	m.belayEvents()
	m.pod.Status.Phase, m.pod.Status.ContainerStatuses, m.pod.Status.Conditions = corev1.PodPending, nil, m.pod.Status.Conditions[:1]
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: uniqueName}}
	m.Nodes, m.Now = append(m.Nodes, node), begin.Add(time.Duration(now)*time.Second)
	return node
}

const uniqueName = corev1.UniqueVolumeName("kubernetes.io/csi/" + fuzzDriver + "^h")

// TestTimelineNamesTheTick: a hop that waits for the next status of a kubelet says so, unless something else is known or more likely.
func TestTimelineNamesTheTick(t *testing.T) {
	const before, after, hangs = "from before the containers ended", "after the containers ended, lists it too", "the unmount fails or hangs"
	const lists = "status.volumesInUse of node n1 lists the volume"
	for name, tc := range map[string]struct {
		make  func(*moved)
		hop   HopName
		says  []string
		never []string
	}{
		"the kubelet has not cleaned up after the pod": {
			func(m *moved) { m.leaves(6, -3); m.old().Finalizers = nil }, HopUnmounted, []string{lists, "the kubelet of node n1 has not cleaned up after pod prod/db-old yet"}, []string{setting, hangs},
		},
		"it has not for long": {
			func(m *moved) { m.leaves(130, 2); m.old().Finalizers = nil }, HopUnmounted, []string{lists, "has not cleaned up after pod prod/db-old yet", hangs}, []string{setting},
		},
		"unmounted, no status since": {
			func(m *moved) { m.leaves(6, -3) }, HopUnmounted,
			[]string{lists, "the kubelet of node n1 unmounts the volume, and lists it in use until its next status (" + setting + ")", before}, []string{hangs, after, explain.DeletedByForce},
		},
		"a status since lists it":  {func(m *moved) { m.leaves(16, 8) }, HopUnmounted, []string{lists, setting, "its status of 12:00:08, " + after}, []string{before}},
		"a status of that second":  {func(m *moved) { m.leaves(6, 2) }, HopUnmounted, []string{lists, setting}, []string{before, after}},
		"no time of the status":    {func(m *moved) { m.leaves(6, 2).Status.Conditions[0].LastHeartbeatTime = metav1.Time{} }, HopUnmounted, []string{setting}, []string{before, after}},
		"for longer than a status": {func(m *moved) { m.leaves(130, 2) }, HopUnmounted, []string{lists, hangs}, []string{setting}},
		"when the pod ended is unknown": {
			func(m *moved) { m.leaves(6, 2); m.pod.Name, m.Pods = "other", m.Pods[:1] }, HopUnmounted, []string{setting, explain.DeletedByForce}, []string{before, after, hangs},
		},
		"the pod is gone, by the creation of the next one": {func(m *moved) { m.leaves(20, 2); m.Pods = m.Pods[:1] }, HopUnmounted, []string{setting}, []string{hangs}},
		"the pod is gone for long":                         {func(m *moved) { m.leaves(126, 2); m.Pods = m.Pods[:1] }, HopUnmounted, []string{hangs}, []string{setting}},
		"the node is not Ready":                            {func(m *moved) { m.leaves(6, 2).Status.Conditions[0].Status = corev1.ConditionUnknown }, HopUnmounted, []string{lists}, []string{setting, hangs}},
		"belay-node writes the list at once": {
			func(m *moved) {
				m.leaves(6, 2).Annotations = map[string]string{kube.VolumesRootAnnotation: "boot /root"}
			}, HopUnmounted, []string{lists}, []string{setting, hangs},
		},
		"mounted, not listed in use": {
			func(m *moved) { m.arrives(15) }, HopMounted, []string{
				"status.volumesInUse of node n2 does not list the volume yet: the kubelet of node n2 lists the volume in use with its next status, and mounts it only then (" + setting + ")",
			}, nil,
		},
		"mounted, listed in use": {
			func(m *moved) { m.arrives(15).Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName} }, HopMounted, []string{"no container of the pod has started"}, []string{setting},
		},
		"mounted, not attached": {func(m *moved) {
			m.arrives(15)
			m.Attachments = nil
			m.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: fuzzDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}}
		}, HopMounted, []string{"no container of the pod has started"}, []string{setting}},
		"mounted, not listed for long": {func(m *moved) { m.arrives(126) }, HopMounted, []string{"no container of the pod has started"}, []string{setting}},
		"mounted by belay-node": {
			func(m *moved) {
				m.arrives(15).Annotations = map[string]string{kube.VolumesRootAnnotation: "boot /root"}
			}, HopMounted, []string{"no container of the pod has started"}, []string{setting},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			tc.make(m)
			h := hopOf(t, m.Snapshot, tc.hop)
			if h.State != HopWaiting {
				t.Errorf("%s is %s: %s", h.Name, h.State, h.Why)
			}
			checkSays(t, h.Why, tc.says, tc.never)
		})
	}
}

// TestFinishedMoveNamesTheTick: nothing records the unmount nor the mount, and the rows say what they may have waited for.
func TestFinishedMoveNamesTheTick(t *testing.T) {
	const recorded, before = "has no times; a kubelet publishes it with its next status, up to nodeStatusUpdateFrequency after the unmount, 10 s by default", "lists it in use with its next status"
	node := func(name string, annotations map[string]string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: uniqueName}}
		return n
	}
	agent := map[string]string{kube.VolumesRootAnnotation: "boot /root"}
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	checkSays(t, hopOf(t, m.Snapshot, HopUnmounted).Why, []string{recorded}, nil) // the Node is not read once the volume has left it
	m.Nodes = []*corev1.Node{node("n1", nil), node("n2", nil)}
	checkSays(t, hopOf(t, m.Snapshot, HopUnmounted).Why, []string{recorded}, nil)
	checkSays(t, hopOf(t, m.Snapshot, HopMounted).Why, []string{"containers start after it", before}, nil)
	m.Nodes = []*corev1.Node{node("n1", agent), node("n2", agent)}
	checkSays(t, hopOf(t, m.Snapshot, HopUnmounted).Why, []string{"has no times"}, []string{recorded})
	checkSays(t, hopOf(t, m.Snapshot, HopMounted).Why, []string{"containers start after it"}, []string{before})
}

func hopOf(t *testing.T, s *Snapshot, name HopName) *Hop {
	t.Helper()
	answer, err := Timelines(s, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil || len(answer.Moves) != 1 {
		t.Fatalf("got %d moves and %v, want one", len(answer.Moves), err)
	}
	checkTimeline(t, 0, answer)
	hops := answer.Moves[0].Hops
	i := slices.IndexFunc(hops, func(h Hop) bool { return h.Name == name })
	if i < 0 {
		t.Fatalf("no hop %s", name)
	}
	return &hops[i]
}

func checkSays(t *testing.T, text string, says, never []string) {
	t.Helper()
	for _, want := range says {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, which lacks %q", text, want)
		}
	}
	for _, other := range never {
		if strings.Contains(text, other) {
			t.Errorf("got %q, which has %q", text, other)
		}
	}
}

// kills adds the kubelet's event about a container of the old pod.
func (m *moved) kills(message string, s int) {
	m.event("old", "Killing", message, s)
	m.Events[len(m.Events)-1].Source.Component = "kubelet"
}

// TestStartOfAMove is the deletion of the old pod, or the latest time at which that can have been: a move does not begin with the creation of
// the next pod on.
func TestStartOfAMove(t *testing.T) {
	for name, tc := range map[string]struct {
		make         func(*moved)
		start, total int
		before       bool
	}{
		"known": {func(m *moved) { m.leaves(20, 2) }, 0, 20, false},
		"by the first container that the kubelet stopped": {func(m *moved) {
			m.belayEvents()
			m.kills("Container app failed liveness probe, will be restarted", -50)
			m.kills("Stopping container app", 0)
			m.kills("Stopping container sidecar", 3)
		}, 0, 16, true},
		"by the detach":       {func(m *moved) { m.belayEvents() }, 4, 12, true},
		"by the next pod":     {func(m *moved) { m.stays(true, PodsIn("prod")) }, 5, 55, true},
		"the first of a kind": {func(*moved) {}, 5, 11, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			tc.make(m)
			answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
			if err != nil {
				t.Fatal(err)
			}
			v := &answer.Moves[0]
			start, total := v.Start.Sub(begin), v.End.Sub(*v.Start)
			if start != time.Duration(tc.start)*time.Second || total != time.Duration(tc.total)*time.Second || v.StartedBefore != tc.before {
				t.Errorf("start %v (or before: %v), total %v, want %d, %v, %d", start, v.StartedBefore, total, tc.start, tc.before, tc.total)
			}
		})
	}
}

// TestWaitsHaveTheirTime: a hop or an interval that has not ended has the time that it has lasted.
func TestWaitsHaveTheirTime(t *testing.T) {
	for name, tc := range map[string]struct {
		make        func(*moved)
		hop         HopName
		lasts, rows string
	}{
		"unmounted": {
			func(m *moved) { m.leaves(20, 2) }, HopUnmounted, "18 after containers ended",
			"old pod's containers end: 2, old node unmounts and publishes that: 18 so far, attacher and driver detach: ?, of these, after the new pod had its node: 15 so far, " +
				"scheduler assigns the node: 0, controller creates the VolumeAttachment: ?, attacher begins: ?, driver attaches, status.attached is true: ?, node lists it in use, stages and publishes: ?, container starts: ?, total, from scheduled to container started: 15 so far, whole move, from the old pod's deletion: 20 so far",
		},
		"unmounted, the old pod is gone": {
			func(m *moved) { m.leaves(20, 2); m.Pods = m.Pods[:1] }, HopUnmounted, "at least 15 after pod deleted",
			"old pod ends, node unmounts and publishes it: at least 15 so far, of these, after the new pod had its node: 15 so far, " +
				"total, from scheduled to container started: 15 so far, whole move, from the old pod's deletion: at least 15 so far",
		},
		"the old pod is not deleted": {
			func(m *moved) { m.stays(false) }, HopPodDeleted, "at least 55 after scheduled",
			"of these, after the new pod had its node: 55 so far",
		},
		"mounted": {func(m *moved) { m.arrives(15) }, HopMounted, "2 after reported", "node lists it in use, stages and publishes: 2 so far, whole move, from the old pod's deletion: at least 11 so far"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			tc.make(m)
			h := hopOf(t, m.Snapshot, tc.hop)
			least := map[bool]string{true: "at least "}[h.AtLeast]
			if h.Seconds == nil || fmt.Sprintf("%s%.0f after %s", least, *h.Seconds, h.After) != tc.lasts {
				t.Errorf("%s: %+v, want %s", h.Name, h, tc.lasts)
			}
			answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(rowsOf(answer.Moves[0].Timing), ", ")
			for _, want := range strings.SplitAfter(tc.rows, " so far") {
				if want = strings.TrimPrefix(want, ", "); !strings.Contains(got, want) {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
}

func rowsOf(timing []Interval) (rows []string) {
	for _, v := range timing {
		text := "?"
		switch {
		case v.Seconds != nil:
			text = fmt.Sprintf("%.0f", *v.Seconds)
		case v.SoFar != nil:
			text = fmt.Sprintf("%s%.0f so far", map[bool]string{true: "at least "}[v.AtLeast != nil], *v.SoFar)
		case v.AtLeast != nil:
			text = fmt.Sprintf("at least %.0f", *v.AtLeast)
		}
		rows = append(rows, v.Name+": "+text)
	}
	return rows
}

// TestExplainNamesTheTick: what waits for the next status of a healthy kubelet says so, and nothing else does.
func TestExplainNamesTheTick(t *testing.T) {
	const cleansUp = "the kubelet of node a has not cleaned up after pod ns/holder yet: it unmounts the volumes of the pod, and then removes the Pod object"
	const unmounts, mounts = "the kubelet of node a unmounts the volume, and lists it in use until its next status", "the kubelet of node b lists the volume in use with its next status, and mounts it only then"
	scheduled := func(s scene, ago time.Duration) {
		s.waiter.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.Now.Add(-ago))}}
	}
	ends := func(s scene, ago time.Duration) {
		s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(20*time.Second - ago)}, new(int64(30))
		s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(s.Now.Add(-ago))}}}}
		s.holder.Finalizers = []string{"example.com/keep"}
	}
	completed := func(s scene, ago time.Duration) {
		ends(s, ago)
		s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds, s.holder.Finalizers, s.holder.Status.Phase = nil, nil, nil, corev1.PodSucceeded
	}
	mounting := func(s scene) {
		s.mounts()
		s.Nodes[1].Status.VolumesInUse = nil
		scheduled(s, 8*time.Second)
	}
	agent := map[string]string{kube.VolumesRootAnnotation: "boot /root", kube.ManagedAttachAnnotation: "true"}
	for name, tc := range map[string]struct {
		make  func(scene)
		want  decision.Reason
		says  string
		never string
	}{
		"the old pod's containers have ended":                     {func(s scene) { scheduled(s, 5*time.Second); ends(s, 4*time.Second) }, attachment.StillInUse, unmounts, ""},
		"they have just ended, and the next pod waits for longer": {func(s scene) { scheduled(s, time.Hour); ends(s, 4*time.Second) }, attachment.StillInUse, unmounts, ""},
		"the kubelet has not cleaned up after the old pod":        {func(s scene) { scheduled(s, 5*time.Second); ends(s, 4*time.Second); s.holder.Finalizers = nil }, attachment.StillInUse, cleansUp, unmounts},
		"a pod of last night has ended, and the last one is gone": {func(s scene) { scheduled(s, 5*time.Second); completed(s, 9*time.Hour) }, attachment.StillInUse, unmounts, ""},
		"a Job has just ended, and the pod has waited for it":     {func(s scene) { scheduled(s, time.Hour); completed(s, 4*time.Second) }, attachment.StillInUse, unmounts, ""},
		"a Job has ended long ago, and the pod has waited for it": {func(s scene) { scheduled(s, time.Hour); completed(s, 3*time.Minute) }, explain.UnmountFailing, "", unmounts},
		"a Job has ended, and the clock of its node is ahead":     {func(s scene) { scheduled(s, time.Hour); completed(s, -time.Hour) }, explain.UnmountFailing, "", unmounts},
		"they ended long ago":                                     {func(s scene) { scheduled(s, time.Hour); ends(s, 3*time.Minute) }, explain.UnmountFailing, "", unmounts},
		"the old pod is gone":                                     {func(s scene) { scheduled(s, 5*time.Second); s.Pods = s.Pods[1:] }, attachment.StillInUse, unmounts, ""},
		"the old pod has been gone for long":                      {func(s scene) { scheduled(s, 3*time.Minute); s.Pods = s.Pods[1:] }, explain.UnmountFailing, "", unmounts},
		"its containers run": {func(s scene) {
			scheduled(s, 5*time.Second)
			ends(s, 0)
			s.holder.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}, explain.HeldByTerminatingPod, "", unmounts},
		"the node is not Ready": {func(s scene) {
			scheduled(s, 5*time.Second)
			s.Pods = s.Pods[1:]
			s.a.Status.Conditions[0].Status = corev1.ConditionUnknown
		}, explain.NodeNotReady, "", unmounts},
		"the node has belay-node":                       {func(s scene) { scheduled(s, 5*time.Second); s.Pods = s.Pods[1:]; s.a.Annotations = agent }, attachment.StillInUse, "", unmounts},
		"the volume is attached, and not listed in use": {mounting, explain.Mounting, mounts, ""},
		"it is listed in use":                           {func(s scene) { mounting(s); s.Nodes[1].Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName} }, explain.Mounting, "", mounts},
		"by belay-node":                                 {func(s scene) { mounting(s); s.Nodes[1].Annotations = agent }, explain.Mounting, "", mounts},
		"it is not listed for long":                     {func(s scene) { mounting(s); scheduled(s, 3*time.Minute) }, explain.MountFailing, "", mounts},
		"volumes of the driver are not attached": {func(s scene) {
			mounting(s)
			s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}}
		}, explain.Mounting, "", mounts},
		"it is not attached yet": {func(s scene) {
			mounting(s)
			s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}}
			s.va.Status.Attached = false
		}, explain.AttacherNotRunning, "", mounts},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			tc.make(s)
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != tc.want || len(e.Findings) != 1 {
				t.Fatalf("%s: %s (%v), want %s", e.Reason, e.Summary, err, tc.want)
			}
			clock := strings.Join(e.Findings[0].Clock, "\n")
			if !strings.Contains(clock, tc.says) || strings.Contains(clock, "("+setting+")") != (tc.says == unmounts || tc.says == mounts) || tc.never != "" && strings.Contains(clock, tc.never) {
				t.Errorf("clock %q, want %q and never %q", clock, tc.says, tc.never)
			}
			if tc.says == mounts && !strings.Contains(e.Summary, "node b, which has to list it in status.volumesInUse before it mounts it") {
				t.Errorf("summary %q", e.Summary)
			}
		})
	}
}

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
			checkSays(t, h.Why, []string{"lists the volume, and pod prod/db-reader uses it there"}, []string{claimsUnmount, claimsHang})
			m.Whole, m.Absent = slices.DeleteFunc(m.Whole, func(r Resource) bool { return r == Pods }), nil
			m.Pods = m.Pods[:len(m.Pods)-1] // it may be one that could not be read
			checkSays(t, hopOf(t, m.Snapshot, HopUnmounted).Why, []string{"a pod there that you may not read may use it"}, []string{claimsUnmount, claimsHang})
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
	if ended := hopOf(t, m.Snapshot, HopEnded); ended.At == nil || !ended.At.Equal(begin) {
		t.Errorf("containers ended: %+v, want the deletion: until then the container could be restarted", ended)
	}
	old.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{} // it waits for its first start
	old.Status.Phase = corev1.PodFailed                                            // as a kubelet writes for it too
	if ended := hopOf(t, m.Snapshot, HopEnded); ended.At == nil || !ended.At.Equal(begin) || ended.Source != endByDeletion {
		t.Errorf("containers ended: %+v, want the deletion: until then the container could start", ended)
	}
	old.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: at(-20)}
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

// TestTickOfExplainAndTimeline: the two commands do not contradict each other about the same volume, also if two pods used it: the newer one, which is
// not there if second is 0, ended before the older one.
func TestTickOfExplainAndTimeline(t *testing.T) {
	for _, tc := range []struct {
		now, second int
		want        decision.Reason
	}{
		{5, 0, attachment.StillInUse},
		{91, 0, attachment.StillInUse},
		{93, 0, explain.UnmountFailing},
		{125, 0, explain.UnmountFailing},
		{125, 120, attachment.StillInUse},
		{91, 1, attachment.StillInUse},
	} {
		now, want := tc.now, tc.want
		m := newMoved("belay-controller", "belay-attacher")
		node := m.leaves(now, now-1)
		if tc.second > 0 {
			older := m.old().DeepCopy()
			older.Name, older.UID, older.CreationTimestamp, older.Status.ContainerStatuses[0].State.Terminated.FinishedAt = "db-older", "older", at(-200), at(tc.second)
			m.Pods = append(m.Pods, older)
		}
		node.Annotations = map[string]string{kube.ManagedAttachAnnotation: "true"}
		m.Whole = []Resource{Pods, Claims, Volumes, Attachments, Nodes, Drivers, CSINodes, Leases}
		h := hopOf(t, m.Snapshot, HopUnmounted)
		e, err := Explain(m.Snapshot, Ref{Pods, "prod", "db-0"})
		if hangs := strings.Contains(h.Why, claimsHang); err != nil || e.Reason != want || hangs != (want == explain.UnmountFailing) {
			t.Errorf("%d s after the containers ended explain says %s (%v): %s\ntimeline says %s", now-2, e.Reason, err, e.Summary, h.Why)
		}
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

// TestForceDeletedPod: the object of a pod that was deleted by force is gone at once, and the kubelet lets its containers run for the grace period
// of its spec (k/k pkg/kubelet/pod_workers.go: calculateEffectiveGracePeriod). That they have ended is not known, nor that the unmount hangs.
func TestForceDeletedPod(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(200, 195)
	m.Pods = m.Pods[:1] // db-0 was deleted by force, and a new one made; its grace period was 600 s
	m.kills("Stopping container app", 4)
	h := hopOf(t, m.Snapshot, HopUnmounted)
	checkSays(t, h.Why, []string{claimsHang + "; " + explain.DeletedByForce}, nil) // the containers may run for 400 s more
	checkSays(t, hopOf(t, m.Snapshot, HopEnded).Why, []string{explain.DeletedByForce}, nil)
	m.Now = begin.Add(10 * time.Second)
	checkSays(t, hopOf(t, m.Snapshot, HopUnmounted).Why, []string{setting, explain.DeletedByForce}, []string{claimsHang})
}
