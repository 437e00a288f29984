package recovery

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// What others write into a Node and into pods. internal/rights has the same with their credentials.

// replaces: the fence of the node is another object, with this epoch.
func (s *stage) replaces(uid string, epoch int64) {
	s.t.Helper()
	f := s.fence()
	last := f.Spec.LastRenewal
	f.Finalizers = nil
	must(s.t, s.client.Update(s.t.Context(), f))
	must(s.t, client.IgnoreNotFound(s.client.Delete(s.t.Context(), f)))
	f.UID, f.ResourceVersion, f.Finalizers = types.UID(uid), "", []string{finalizer}
	f.Spec.Epoch, f.Spec.LastRenewal, f.Status.Phase = epoch, last, ""
	must(s.t, s.client.Create(s.t.Context(), f))
}

func (s *stage) cancelled() bool {
	s.t.Helper()
	return fencing.Phase(s.fence().Status.Phase) == fencing.Cancelled
}

// TestOnlyAFenceOutdatesAFence (hole 13): a fence whose create was carried out late is cancelled, because this process saw a later one. What the
// Node shows does not count: its kubelet can write that.
func TestOnlyAFenceOutdatesAFence(t *testing.T) {
	for _, epoch := range []int64{2, time.Now().Add(time.Hour).Unix(), math.MaxInt64} {
		s := newStage(t, fencing.Fencing)
		s.changeNode(func(n *corev1.Node) { n.Annotations[kube.FenceEpochAnnotation] = strconv.FormatInt(epoch, 10) })
		if s.turns(); s.cancelled() {
			t.Errorf("the Node shows %d, and the fence of epoch 1 is cancelled", epoch)
		}
	}
	s := newStage(t, fencing.Fencing)
	s.replaces("fence-9", 9)
	s.turns()
	if s.cancelled() {
		t.Fatal("the fence of epoch 9 is cancelled")
	}
	s.replaces("late-9", 9)
	if s.turns(); !s.cancelled() {
		t.Error("another fence of epoch 9 counts after it")
	}
	s.replaces("fence-8", 8)
	if s.turns(); !s.cancelled() {
		t.Error("a fence of epoch 8 counts after one of epoch 9")
	}
	s.clock = s.clock.Add(requestLifetime)
	s.replaces("fence-7", 7)
	if s.turns(); s.cancelled() {
		t.Error("no create is carried out after a minute, and a fence is cancelled as late")
	}
}

// TestPodsOfTheBoot (hole 20): of the pods that were there when the taint was first seen each is deleted that uses a volume, whatever it claims to be.
// One that comes later, as the next pod of a DaemonSet, stays, until the taint is set again.
func TestPodsOfTheBoot(t *testing.T) {
	s := newStage(t, fencing.Evicting)
	turn := &turn{actor: s.actor, fence: s.fence(), mem: s.remember(s.fence())}
	add := func(name string, of *corev1.Pod) {
		t.Helper()
		of.UID = types.UID(name)
		must(t, s.client.Create(t.Context(), of))
	}
	ofDaemonSet := func(name string, claims ...string) *corev1.Pod {
		p := fixture.Pod("default", name, "n1", claims...)
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "ds", UID: "ds", Controller: new(true)}}
		return p
	}
	inline := ofDaemonSet("inline")
	inline.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "p", IQN: "i"}}}}
	add("bare", fixture.Pod("default", "bare", "n1"))
	add("owned", ofDaemonSet("owned", "data"))
	add("inline", inline)
	add("exporter", ofDaemonSet("exporter"))
	deleted := func() (names []string) {
		t.Helper()
		must(t, turn.list(t.Context()))
		seen := fencing.Observed{
			Exists: fencing.Yes, Now: fenceState(turn.fence).Boot, OutOfService: true, Ended: true, Silent: true, Listed: true, Pods: turn.mem.left.pods,
		}
		for _, step := range fencing.Decide(s.clock, fenceState(turn.fence), seen).Steps {
			if d, ok := step.(fencing.DeletePod); ok {
				names = append(names, d.Pod.Name)
				must(t, turn.act(t.Context(), d))
			}
		}
		slices.Sort(names)
		return names
	}
	turn.mem.tainted = s.clock
	if got := deleted(); !slices.Equal(got, []string{"bare", "inline", "owned"}) {
		t.Errorf("deleted are %v", got)
	}
	add("next", ofDaemonSet("next", "data"))
	if got := deleted(); len(got) > 0 {
		t.Errorf("deleted are %v, which came after the taint", got)
	}
	turn.mem.tainted = s.clock.Add(time.Minute) // it was removed, and set again: the machine may have had power between
	if got := deleted(); !slices.Equal(got, []string{"next"}) {
		t.Errorf("deleted after another taint are %v", got)
	}
}
