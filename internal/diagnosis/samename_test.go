package diagnosis

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestPodsOfTheSameName: a StatefulSet's pods have one name. What happened to an earlier one is no part of the move of the last one.
func TestPodsOfTheSameName(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(*moved)
		want string
	}{
		"an eviction before the pod had its node": {func(m *moved) {
			m.event("", "TaintManagerEviction", "Marking for deletion Pod prod/db-0", -300)
		}, "pod deleted: Unknown by 4s"},
		"restarted in place, where the volume stayed attached": {func(m *moved) {
			m.kills("Stopping container app", -60) // of the first pod
			m.event("second", "Scheduled", "Successfully assigned prod/db-0 to n1", -50)
			m.event("second", "Killing", "Stopping container app", 1)
		}, "pod deleted: Unknown by 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoved("belay-controller", "belay-attacher")
			m.belayEvents()
			tc.make(m)
			if got := strings.Join(lines(moveOf(t, m)), ", "); !strings.HasPrefix(got, tc.want) {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestReadyNoMore: a pod whose node fell silent after the move is not one that has not been Ready yet.
func TestReadyNoMore(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.pod.Status.Conditions[2] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(50)}
	if h := hopOf(t, m.Snapshot, HopReady); h.State != HopUnknown || !strings.Contains(h.Why, "not Ready any more") {
		t.Errorf("%+v", h)
	}
	m.pod.Status.Conditions[2].LastTransitionTime = at(5) // as it was created
	if h := hopOf(t, m.Snapshot, HopReady); h.State != HopWaiting {
		t.Errorf("%+v", h)
	}
}

// TestFenceOfANodeThatWasHeard: a fence that is not proven is cancelled once the node renews its lease: the move waits for the unmount.
func TestFenceOfANodeThatWasHeard(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(60, 55)
	m.fencedAt(fencing.Fencing, "", 0)
	m.Leases = append(m.Leases, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n1"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(begin.Add(58 * time.Second)))},
	})
	for _, h := range moveOf(t, m).Hops {
		if h.Name == HopProven {
			t.Errorf("%+v", h)
		}
	}
}

// TestStartNotBefore: a machine is not to be started while a command that was stored may still switch it off.
func TestStartNotBefore(t *testing.T) {
	s := newScene()
	f := &fence{Fence: fencing.Fence{Phase: fencing.Moved, Intent: fencing.Intent{Nonce: "n", NotAfter: s.Now.Add(20 * time.Second)}}, reason: fencing.AwaitingBoot}
	f.object = &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	x := newState(s.Snapshot)
	if steps := x.fenceSteps(f); len(steps) < 2 || !strings.Contains(steps[0].Text, "Do not start the machine before") {
		t.Errorf("%+v", steps)
	}
	f.Intent.NotAfter = s.Now
	if steps := x.fenceSteps(f); len(steps) == 0 || strings.Contains(steps[0].Text, "Do not start") {
		t.Errorf("%+v", steps)
	}
}
