package simulation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// What the oracle must not excuse.

// oneVolume is a simulation with one exclusive volume, attached to n0 by an earlier leader.
func oneVolume(t *testing.T) (s *sim, d *disk, va *storagev1.VolumeAttachment) {
	t.Helper()
	s = newSim(1)
	d = &disk{handle: "a^1", exclusive: true}
	s.disks = []*disk{d}
	earlier := s.newActor("controller-1")
	va = &storagev1.VolumeAttachment{}
	va.Name, va.Spec.Attacher, va.Spec.NodeName = kube.AttachmentName(d.handle, driverName, "n0"), driverName, "n0"
	va = s.mustCreate(va).(*storagev1.VolumeAttachment)
	s.makers[va.UID] = earlier
	return s, d, va
}

// TestOracleFindsALeaderWithAnOldCache (S1): a new leader that does not wait for its caches (ADR 17) attaches a volume that the leader before it
// has attached long ago.
func TestOracleFindsALeaderWithAnOldCache(t *testing.T) {
	s, d, va := oneVolume(t)
	for range 100 { // long ago, by the version of the API server too
		pod := s.mustCreate(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "filler"}})
		s.api.drop(pod)
	}
	s.controller = &controller{actor: s.newActor("controller-2")} // elected now
	made := va.DeepCopy()
	made.Name, made.Spec.NodeName, made.UID = kube.AttachmentName(d.handle, driverName, "n1"), "n1", "other"
	stale := s.requests.known[va.UID] - 1 // its cache is from before the attach
	s.judgeAttach(write{by: s.controller.actor, request: &request{sent: s.api.version, looks: map[string]int{d.handle: stale}}}, made)
	if !startsWith(s.broken, "S1: ") {
		t.Errorf("%q, excused %v, want S1", s.broken, s.excused)
	}
}

// TestOracleFindsATaintOnAReadyNode (S2): a Ready node has the out-of-service taint, left from the last time or on the wrong node. It permits
// nothing (ADR 18, point 7).
func TestOracleFindsATaintOnAReadyNode(t *testing.T) {
	s, d, va := oneVolume(t)
	s.controller = &controller{actor: s.newActor("controller-2")}
	s.policy = attachment.Policy{OutOfService: true}
	m := s.machines["n0"]
	if node, ok := get[*corev1.Node](s.api, "n0"); ok {
		s.api.drop(node)
	}
	node := bareNode("n0")
	setReady(node, corev1.ConditionTrue)
	node.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Effect: corev1.TaintEffectNoExecute}}
	s.mustCreate(node)
	m.of(d.handle).mounted = true
	s.judgeDetach(write{by: s.controller.actor, request: &request{sent: s.api.version, heard: map[string]int{"n0": s.api.version}}}, va)
	if !startsWith(s.broken, "S2: ") {
		t.Errorf("%q, want S2: a Ready machine has it mounted", s.broken)
	}
}
