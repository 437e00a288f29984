package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// fencedAt makes n1 a node that fell silent 30 s before the old pod was deleted, whose fence was proven at a second if that is not negative.
func (m *moved) fencedAt(phase fencing.Phase, class fencing.Class, proven int) *fencingv1.NodeFence {
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: at(-5), Finalizers: []string{kube.FenceFinalizer}}}
	f.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", LastRenewal: begin.Add(-30*time.Second).Format(time.RFC3339Nano) + " n1 uid"}
	f.Status.Phase = fencingv1.Phase(phase)
	if class != "" {
		f.Status.Conditions = []metav1.Condition{{Type: kube.ConditionProven, Status: metav1.ConditionTrue, Reason: string(class), LastTransitionTime: at(proven)}}
	} else {
		f.Status.Missing = []string{"SourceSilent: the switch does not answer"}
	}
	m.Fences, m.Whole = append(m.Fences, f), append(m.Whole, Fences)
	return f
}

// TestTimelineOfAFencedNode: the move begins with the last sign of life of the node, has the proof, and does not claim an unmount.
func TestTimelineOfAFencedNode(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(*moved)
		want string
		says string // in the reason of a hop
	}{
		"proven, and moved": {
			func(m *moved) { m.belayEvents(); m.fencedAt(fencing.Moved, fencing.PoweredOff, 3) },
			"node silent: -30s, fence proven: 3s, pod deleted: Unknown by 4s, containers ended: Unknown by 3s, unmounted: NotNeeded, detach requested: 4s", "(PoweredOff) is that they had ended by then",
		},
		"released since": {
			func(m *moved) {
				m.belayEvents()
				f := m.fencedAt(fencing.Released, fencing.PoweredOff, 3)
				f.Finalizers, f.Status.Untainted = nil, new(at(40))
			},
			"node silent: -30s, fence proven: 3s, ", "",
		},
		"released before the move": {
			func(m *moved) {
				m.belayEvents()
				f := m.fencedAt(fencing.Released, fencing.PoweredOff, -300)
				f.CreationTimestamp, f.Finalizers, f.Status.Untainted = at(-320), nil, new(at(-200))
			},
			"pod deleted: Unknown by 4s, ", "",
		},
		"began after the move": {
			func(m *moved) {
				m.belayEvents()
				m.fencedAt(fencing.Moved, fencing.PoweredOff, 30).CreationTimestamp = at(20)
			},
			"pod deleted: Unknown by 4s, ", "",
		},
		"cancelled": {
			func(m *moved) { m.belayEvents(); m.fencedAt(fencing.Cancelled, "", 0).Finalizers = nil },
			"pod deleted: Unknown by 4s, ", "",
		},
		"a fence that says nothing of the lease": {
			func(m *moved) {
				m.belayEvents()
				m.fencedAt(fencing.Moved, fencing.Stated, 3).Spec.LastRenewal = "hostile"
			},
			"node silent: Unknown by -5s, fence proven: 3s, ", "",
		},
		"not proven yet": {
			func(m *moved) {
				m.leaves(60, -30).Status.Conditions[0].Status = corev1.ConditionUnknown
				m.old().Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
				m.fencedAt(fencing.Fencing, "", 0)
			},
			"node silent: -30s, fence proven: Waiting, pod deleted: 0s, containers ended: Pending, unmounted: Pending, detach requested: Pending", "the switch does not answer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			tc.make(m)
			answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
			if err != nil {
				t.Fatal(err)
			}
			checkTimeline(t, 0, answer)
			v := &answer.Moves[0]
			if got := strings.Join(lines(v), ", "); !strings.HasPrefix(got, tc.want) {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if !slices.ContainsFunc(v.Hops, func(h Hop) bool { return strings.Contains(h.Why, tc.says) }) {
				t.Errorf("no hop says %q: %+v", tc.says, v.Hops)
			}
			fenced := strings.HasPrefix(tc.want, "node silent")
			if last := v.Timing[len(v.Timing)-1].Name; strings.Contains(last, "last heartbeat") != fenced {
				t.Errorf("the last row is %q", last)
			}
			if fenced && tc.want[13:17] == "-30s" && !v.Start.Equal(begin.Add(-30*time.Second)) {
				t.Errorf("begins at %v", v.Start)
			}
		})
	}
}

// TestTimelineOfADeparture: a pod that is being deleted, with no other one, leaves: the move that it came with is not the last.
func TestTimelineOfADeparture(t *testing.T) {
	for _, subject := range []Ref{{Resource: Volumes, Name: "pv-1"}, {Resource: Pods, Namespace: "prod", Name: "db-0"}, {Resource: Claims, Namespace: "prod", Name: "data"}} {
		m := departs()
		answer, err := Timelines(m.Snapshot, subject)
		if err != nil {
			t.Fatal(err)
		}
		checkTimeline(t, 0, answer)
		v := &answer.Moves[0]
		const want = "pod deleted: 50s, containers ended: 53s, unmounted: Waiting, detach requested: Pending, detached: Pending"
		if got := strings.Join(lines(v), ", "); got != want || v.From != "n2" || v.To != "" || v.Pod != nil {
			t.Errorf("%s: from %q to %q for %v:\ngot  %s\nwant %s", subject, v.From, v.To, v.Pod, got, want)
		}
		if got := strings.Join(rowsOf(v.Timing), ", "); got != "old pod's containers end: 3, old node unmounts and publishes that: 7 so far, attacher and driver detach: ?" {
			t.Errorf("%s: %s", subject, got)
		}
	}
	m := departs() // the next pod waits
	next := podOf("next", "n3", 55)
	next.Name = "db-1"
	m.Pods = append(m.Pods, next)
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if v := &answer.Moves[0]; err != nil || v.From != "n2" || v.To != "n3" {
		t.Errorf("from %q to %q, %v", v.From, v.To, err)
	}
}

// TestStuckUnmount: a deleted pod that has ended is stuck if its volume stays in use, whether another pod waits for the volume or not, as explain says.
func TestStuckUnmount(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(scene)
		ago  time.Duration
		want string
	}{
		"hangs":          {nil, 3 * time.Minute, "pods UnmountFailing"},
		"has just ended": {nil, 10 * time.Second, ""},
		// What keeps the pod is no volume, but its own is not unmounted.
		"a finalizer keeps it": {func(s scene) { s.holder.Finalizers = []string{"example.com/keep"} }, 3 * time.Minute, "volumeattachments UnmountFailing"},
		// The kubelet has not removed the object, and nothing detaches the volume.
		"is not listed any more": {func(s scene) { s.a.Status.VolumesInUse = nil }, 3 * time.Minute, "volumeattachments OrphanAttachment, pods PodTerminating"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return p == s.waiter })
			s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(30*time.Second - tc.ago)}, new(int64(30))
			s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(s.Now.Add(-tc.ago))}}}}
			if tc.make != nil {
				tc.make(s)
			}
			var got []string
			for _, f := range Stuck(s.Snapshot, "", 0).Items {
				got = append(got, string(f.Subject.Resource)+" "+string(f.Reason))
			}
			if text := strings.Join(got, ", "); text != tc.want {
				t.Errorf("stuck: %s, want %s", text, tc.want)
			}
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "holder"})
			if err != nil || (e.Verdict == Unsafe || e.Verdict == Blocked) != strings.Contains(tc.want, "pods") {
				t.Errorf("explain: %s %s (%v)", e.Verdict, e.Reason, err)
			}
		})
	}
}
