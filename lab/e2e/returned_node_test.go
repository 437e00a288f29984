package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// returnedWithin bounds the wait for a kubelet that registered again and never lists the volume:
// it has to be Ready and renew its lease for attachment.SyncWindow, 40 s. The flags are the
// defaults, so nothing is forced before six minutes have passed.
const returnedWithin = 90 * time.Second

// TestReturnedKubeletNeverListsVolume deletes the Node of a kubelet, and the pod as PodGC does. The kubelet unmounts
// the volume, is restarted on the same boot, and registers a Node that does not list the volume, because it is not
// mounted any more.
func TestReturnedKubeletNeverListsVolume(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: real kubelets that register again belong to the long tests")
	}
	if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
		t.Skip("NOT RUN: " + because)
	}
	scene := labtest.Open(t, cluster.Options{
		Name: "e2e-return", Nodes: 2, NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneBelay, Drivers: []string{labdisk.DriverDisk},
	})
	s := &stuck{&labtest.Stuck{T: t, Scene: scene, Name: "returned", Began: time.Now()}}
	t.Cleanup(s.Story)
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Wait()
	s.Hears("already used by pod(s) " + s.Pod("holder"))
	before := s.node(labtest.Holding)
	s.DeleteNode(labtest.Holding)
	s.Vanish("holder")
	s.Called("NodeUnstageVolume", labtest.Holding, true)
	if err := scene.Cluster.Kill(labtest.Holding + "/" + nodes.ChildAgent); err != nil {
		t.Fatal(err)
	}
	if err := nodes.AdoptNode(t.Context(), scene.Client, labtest.Holding, scene.Cluster.Node(labtest.Holding).Config.Address); err != nil {
		t.Fatal(err)
	}
	after := s.node(labtest.Holding)
	if after.UID == before.UID || after.Status.NodeInfo.BootID != before.Status.NodeInfo.BootID {
		t.Fatalf("Node %s, boot %s; before %s, %s: want another Node on the same boot",
			after.UID, after.Status.NodeInfo.BootID, before.UID, before.Status.NodeInfo.BootID)
	}
	text := s.Hears(`node "node-1" was deleted, has registered again`, "it is detached at")
	s.since(text)
	s.Arrives()
	took := time.Since(after.CreationTimestamp.Time)
	t.Logf("the pod runs %.0f s after the kubelet registered again", took.Seconds())
	if took > returnedWithin {
		t.Errorf("that is more than %v", returnedWithin)
	}
	s.wasNotForced()
	s.wasNeverListed(labtest.Holding, after.CreationTimestamp.Time)
}

func (s *stuck) node(name string) *corev1.Node {
	s.Helper()
	node, err := s.Scene.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return node
}

// wasNotForced checks that the detach needed no policy.
func (s *stuck) wasNotForced() {
	s.Helper()
	events, err := s.Events("PersistentVolumeClaim", s.Name)
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range events {
		if e.Reason == "DetachingVolume" && e.Type != corev1.EventTypeNormal {
			s.Errorf("%s: %s", e.Type, e.Message)
		}
	}
}

// wasNeverListed checks that the Node did not list the volume after a time.
func (s *stuck) wasNeverListed(node string, after time.Time) {
	s.Helper()
	unique := kube.UniqueVolumeName(labdisk.DriverDisk, s.Handle)
	for _, c := range s.Scene.Record.Changes() {
		if c.Kind == timeline.InUse && c.Node == node && c.Volume == unique && c.At.After(after) {
			s.Errorf("%s listed the volume in use at %v: another case than the one of this test", node, c.At)
		}
	}
}
