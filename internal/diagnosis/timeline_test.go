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
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// moved is a cluster in which pod db-0 and its volume have moved from n1 to n2. Times are seconds from the beginning: the old pod's
// deletion 0, its detach 4 to 6, the new pod 5, its attach 7 to 12, its container 15.
type moved struct {
	*Snapshot
	pod *corev1.Pod
	va  *storagev1.VolumeAttachment
}

func at(s int) metav1.Time { return metav1.NewTime(begin.Add(time.Duration(s) * time.Second)) }

const controllerEvents = "attachdetach-controller"

func newMoved(controller, attacher string) *moved {
	s := &Snapshot{Now: begin.Add(time.Minute), AllNamespaces: true, Whole: []Resource{Attachments, Drivers}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "data", UID: "claim"}}
	claim.Spec.VolumeName = "pv-1"
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1", UID: "volume"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: fuzzDriver, VolumeHandle: "h"}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "prod", Name: "data", UID: "claim"}
	pod := podOf("new", "n2", 5)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(5)},
			{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: at(14)},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(16)},
		},
		ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(15)}}}},
	}
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Name: kube.AttachmentName("h", fuzzDriver, "n2"), CreationTimestamp: at(7), Finalizers: []string{"external-attacher/disk"},
		ManagedFields: []metav1.ManagedFieldsEntry{
			written(controller, 7, `{"f:spec":{"f:attacher":{}}}`), written(attacher, 8, `{"f:metadata":{"f:finalizers":{}}}`),
			written(attacher, 12, `{"f:status":{"f:attached":{}}}`),
		},
	}}
	va.Spec = storagev1.VolumeAttachmentSpec{Attacher: fuzzDriver, NodeName: "n2", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}}
	va.Status.Attached = true
	s.Claims, s.Volumes, s.Pods, s.Attachments = append(s.Claims, claim), append(s.Volumes, pv), append(s.Pods, pod), append(s.Attachments, va)
	return &moved{s, pod, va}
}

func podOf(uid, node string, created int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-0", UID: types.UID(uid), CreationTimestamp: at(created)}}
	pod.Spec.NodeName = node
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return pod
}

func written(manager string, s int, fields string) metav1.ManagedFieldsEntry {
	when := at(s)
	return metav1.ManagedFieldsEntry{Manager: manager, Time: &when, FieldsV1: metav1.NewFieldsV1(fields)}
}

// stays leaves the volume on n1 although the pod there is gone: db-0 waits on n2.
func (m *moved) stays(inUse bool, absent ...Ref) *Snapshot {
	m.event("old", "Scheduled", "Successfully assigned prod/db-0 to n1", -100)
	m.event("old", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "pv-1" `, -99)
	m.va.Name, m.va.Spec.NodeName, m.va.CreationTimestamp = kube.AttachmentName("h", fuzzDriver, "n1"), "n1", at(-99)
	m.pod.Status.Phase, m.pod.Status.ContainerStatuses, m.pod.Status.Conditions = corev1.PodPending, nil, m.pod.Status.Conditions[:1]
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if inUse {
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(kube.UniqueVolumeName(fuzzDriver, "h"))}
	}
	m.Nodes, m.Absent = append(m.Nodes, node), absent
	return m.Snapshot
}

// event adds an event with whole seconds.
func (m *moved) event(uid, reason, message string, s int) {
	m.Events = append(m.Events, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "prod", Name: "db-0", UID: types.UID(uid)}, Reason: reason, Message: message,
		FirstTimestamp: at(s), LastTimestamp: at(s), Source: corev1.EventSource{Component: controllerEvents},
	})
}

// belayEvents are those that belay-controller and the scheduler leave of the move.
func (m *moved) belayEvents() {
	m.event("old", "Scheduled", "Successfully assigned prod/db-0 to n1", -100)
	m.event("old", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "pv-1" `, -99)
	m.event("claim", "DetachingVolume", `DetachVolume.Detach started for volume "pv-1" from node "n1"`, 4)
	m.event("claim", "SuccessfulDetachVolume", `DetachVolume.Detach succeeded for volume "pv-1" from node "n1"`, 6)
	m.event("new", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "pv-1" `, 13)
	m.Events = append(m.Events, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{UID: "new"}, Reason: "Scheduled", Message: "Successfully assigned prod/db-0 to n2",
		EventTime: metav1.NewMicroTime(begin.Add(5250 * time.Millisecond)), ReportingController: "default-scheduler",
	})
}

// lines are the hops as text: the time from the beginning, or the state with the limit.
func lines(m *Move) []string {
	var out []string
	for i := range m.Hops {
		h := &m.Hops[i]
		text := string(h.State)
		switch {
		case h.At != nil:
			text = h.At.Sub(begin).String()
		case h.NotAfter != nil:
			text += " by " + h.NotAfter.Sub(begin).String()
		}
		out = append(out, fmt.Sprintf("%s: %s", h.Name, text))
	}
	return out
}

func TestTimeline(t *testing.T) {
	pv := Ref{Resource: Volumes, Name: "pv-1"}
	for name, tc := range map[string]struct {
		make func() *Snapshot
		from string
		want string
	}{
		"belay's plane": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.belayEvents()
				return m.Snapshot
			},
			from: "n1",
			want: `pod deleted: Unknown by 4s, containers ended: Unknown by 4s, unmounted: Unknown by 4s, detach requested: 4s, detached: 6s,
				pod created: 5s, scheduled: 5.25s, attach requested: 7s, attacher began: 8s, attached: 12s, reported: 13s, mounted: Unknown by 14s,
				container started: 15s, ready: 16s`,
		},
		"belay's plane, the volume was in use at the detach": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.belayEvents()
				m.Events[2].Type = corev1.EventTypeWarning
				return m.Snapshot
			},
			from: "n1",
			want: `pod deleted: Unknown by 5s, containers ended: Unknown, unmounted: Unknown, detach requested: 4s, detached: 6s,
				pod created: 5s, scheduled: 5.25s, attach requested: 7s, attacher began: 8s, attached: 12s, reported: 13s, mounted: Unknown by 14s,
				container started: 15s, ready: 16s`,
		},
		"upstream's plane, whose detach leaves no event": {
			make: func() *Snapshot {
				m := newMoved("kube-controller-manager", "csi-attacher")
				m.event("old", "Scheduled", "Successfully assigned prod/db-0 to n1", -100)
				m.event("old", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "pv-1" `, -99)
				m.event("old", "Killing", "Stopping container c", 1)
				m.event("new", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "pv-1" `, 12)
				return m.Snapshot
			},
			from: "n1",
			want: `pod deleted: Unknown by 1s, containers ended: Unknown by 7s, unmounted: Unknown by 7s, detach requested: Unknown by 7s, detached: Unknown by 7s,
				pod created: 5s, scheduled: 5s, attach requested: 7s, attacher began: 8s, attached: 12s, reported: Unknown by 14s, mounted: Unknown by 14s,
				container started: 15s, ready: 16s`,
		},
		"the taint of a node deleted the pod, and its event has no UID": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.belayEvents()
				m.event("", "TaintManagerEviction", "Marking for deletion Pod prod/db-0", 1)
				m.event("", "TaintManagerEviction", "Marking for deletion Pod prod/db-0", 50) // that is the next one
				return m.Snapshot
			},
			from: "n1",
			want: `pod deleted: 1s, containers ended: Unknown by 4s, unmounted: Unknown by 4s, detach requested: 4s, detached: 6s,
				pod created: 5s, scheduled: 5.25s, attach requested: 7s, attacher began: 8s, attached: 12s, reported: 13s, mounted: Unknown by 14s,
				container started: 15s, ready: 16s`,
		},
		"the taint manager would have deleted the pod, and a person did": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.belayEvents()
				m.event("", "TaintManagerEviction", "Cancelling deletion of Pod prod/db-0", 2)
				return m.Snapshot
			},
			from: "n1",
			want: `pod deleted: Unknown by 4s, containers ended: Unknown by 4s, unmounted: Unknown by 4s, detach requested: 4s, detached: 6s,
				pod created: 5s, scheduled: 5.25s, attach requested: 7s, attacher began: 8s, attached: 12s, reported: 13s, mounted: Unknown by 14s,
				container started: 15s, ready: 16s`,
		},
		"events are gone": {
			make: func() *Snapshot { return newMoved("kube-controller-manager", "csi-attacher").Snapshot },
			want: `pod created: 5s, scheduled: 5s, attach requested: 7s, attacher began: 8s, attached: 12s, reported: Unknown by 14s, mounted: Unknown by 14s,
				container started: 15s, ready: 16s`,
		},
		"the attacher wrote again after the attach": {
			make: func() *Snapshot {
				m := newMoved("kube-controller-manager", "csi-attacher")
				m.va.ManagedFields[1].Time.Time = begin.Add(40 * time.Second)
				return m.Snapshot
			},
			want: `pod created: 5s, scheduled: 5s, attach requested: 7s, attacher began: Unknown by 12s, attached: 12s, reported: Unknown by 14s,
				mounted: Unknown by 14s, container started: 15s, ready: 16s`,
		},
		"a pod that restarted on its node": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.belayEvents()
				m.va.CreationTimestamp = at(-50)
				return m.Snapshot
			},
			want: `pod created: 5s, scheduled: 5.25s, attach requested: NotNeeded, attacher began: NotNeeded, attached: NotNeeded, reported: NotNeeded,
				mounted: Unknown by 14s, container started: 15s, ready: 16s`,
		},
		"the old node does not unmount": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.va.Name, m.va.Spec.NodeName = kube.AttachmentName("h", fuzzDriver, "n1"), "n1"
				m.va.CreationTimestamp = at(-99)
				m.pod.Status.Phase, m.pod.Status.ContainerStatuses, m.pod.Status.Conditions = corev1.PodPending, nil, m.pod.Status.Conditions[:1]
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
				node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(kube.UniqueVolumeName(fuzzDriver, "h"))}
				m.Nodes = append(m.Nodes, node)
				old := podOf("old", "n1", -100)
				deleted, ended := at(30), at(2)
				old.DeletionTimestamp, old.DeletionGracePeriodSeconds = &deleted, new(int64(30))
				old.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended}}}}
				old.Name = "db-old"
				m.Pods = append(m.Pods, old)
				return m.Snapshot
			},
			from: "n1",
			want: `pod deleted: 0s, containers ended: 2s, unmounted: Waiting, detach requested: Pending, detached: Pending,
				pod created: 5s, scheduled: 5s, attach requested: Waiting, attacher began: Pending, attached: Pending, reported: Pending,
				mounted: Pending, container started: Pending, ready: Pending`,
		},
		"the old pod is gone, and its node does not unmount": {
			make: func() *Snapshot { return newMoved("belay-controller", "belay-attacher").stays(true, PodsIn("prod")) },
			from: "n1",
			want: `pod deleted: Unknown by 5s, containers ended: Unknown, unmounted: Waiting, detach requested: Pending, detached: Pending,
				pod created: 5s, scheduled: 5s, attach requested: Waiting, attacher began: Pending, attached: Pending, reported: Pending,
				mounted: Pending, container started: Pending, ready: Pending`,
		},
		"the old pod is gone, its node has unmounted, and no controller detaches": {
			make: func() *Snapshot { return newMoved("belay-controller", "belay-attacher").stays(false, PodsIn("prod")) },
			from: "n1",
			want: `pod deleted: Unknown by 5s, containers ended: Unknown, unmounted: Unknown, detach requested: Waiting, detached: Pending,
				pod created: 5s, scheduled: 5s, attach requested: Waiting, attacher began: Pending, attached: Pending, reported: Pending,
				mounted: Pending, container started: Pending, ready: Pending`,
		},
		"the old pod may be one that could not be read": {
			make: func() *Snapshot { return newMoved("belay-controller", "belay-attacher").stays(false) },
			from: "n1",
			want: `pod deleted: Waiting, containers ended: Pending, unmounted: Pending, detach requested: Pending, detached: Pending,
				pod created: 5s, scheduled: 5s, attach requested: Waiting, attacher began: Pending, attached: Pending, reported: Pending,
				mounted: Pending, container started: Pending, ready: Pending`,
		},
		"without pods that may be read": {
			make: func() *Snapshot {
				m := newMoved("belay-controller", "belay-attacher")
				m.Pods, m.AllNamespaces = nil, false
				return m.Snapshot
			},
			want: `pod created: Unknown, scheduled: Unknown, attach requested: 7s, attacher began: 8s, attached: 12s, reported: Unknown,
				mounted: Unknown, container started: Unknown, ready: Unknown`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := Timelines(tc.make(), pv)
			if err != nil || len(answer.Moves) != 1 {
				t.Fatalf("got %d moves and %v, want one", len(answer.Moves), err)
			}
			m := &answer.Moves[0]
			if got, want := strings.Join(lines(m), ", "), strings.Join(strings.Fields(tc.want), " "); got != want || m.From != tc.from {
				t.Errorf("from %q:\ngot  %s\nwant %s", m.From, got, want)
			}
			checkTimeline(t, 0, answer)
		})
	}
}

// TestTimingOfAMove has the table that the hops are for: what is known is a number, and what is not has a reason.
func TestTimingOfAMove(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	answer, err := Timelines(m.Snapshot, Ref{Resource: Pods, Namespace: "prod", Name: "db-0"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range answer.Moves[0].Timing {
		switch {
		case v.Seconds != nil:
			got = append(got, fmt.Sprint(*v.Seconds))
		case v.AtMost != nil:
			got = append(got, fmt.Sprint("<", *v.AtMost))
		case v.AtLeast != nil:
			got = append(got, fmt.Sprint(">", *v.AtLeast))
		default:
			got = append(got, "?")
		}
	}
	// When the old pod was deleted is not recorded: its detach was requested at 4. The VolumeAttachment waits for the detach. The mount is
	// between the report (13) and the first sign of a container (14).
	if want := []string{"?", "2", "0", "1", "1", "4", "<2", "<3", "10", ">11"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// checkTimeline: each hop without a time has a reason, none lasts less than nothing, and no hidden name appears.
func checkTimeline(t *testing.T, seed uint64, answer Timeline) {
	t.Helper()
	for i := range answer.Moves {
		m := &answer.Moves[i]
		for j := range m.Hops {
			h := &m.Hops[j]
			if (h.State == HopDone) != (h.At != nil) || h.State == HopUnknown && h.Why == "" || h.Component == "" || h.Seconds != nil && *h.Seconds < 0 {
				t.Errorf("seed %d, %s: %+v", seed, answer.Subject, h)
			}
		}
		for _, v := range m.Timing {
			if (v.Seconds == nil) != (v.Unknown != "") {
				t.Errorf("seed %d, %s: %+v", seed, answer.Subject, v)
			}
		}
		if text := fmt.Sprintf("%+v %+v %+v %+v", m.Volume, m.Pod, m.Hops, m.Timing); strings.Contains(text, "secretns") {
			t.Errorf("seed %d, %s: the answer has a hidden name: %s", seed, answer.Subject, text)
		}
	}
}
