package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

const (
	// stuckUnmountWait replaces upstream's six minutes. It is longer than a node agent needs to start again, so that a
	// Node that was deleted is back before its volumes are detached by force.
	stuckUnmountWait            = 30 * time.Second
	shareAttacher               = "attacher-labshare"
	deleted, recreated, tainted = "node-3", "node-4", "node-5"
)

// TestStuckPodEventNamesCause makes each situation in which a pod waits for its volume, and
// reads the events on the pod as its owner does: they name the cause, the node, since when,
// and what ends the wait.
func TestStuckPodEventNamesCause(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes: an attacher has to be silent for two")
	}
	scene := labtest.Open(t, cluster.Options{
		Name: "e2e-stuck", Nodes: 5, NodeKind: cluster.NodeKindBelay, Plane: cluster.PlaneBelay,
		Drivers:        []string{labdisk.DriverDisk, labdisk.DriverShare},
		ControllerArgs: []string{"--max-wait-for-unmount-duration=" + stuckUnmountWait.String()},
	})
	for _, one := range []struct {
		name string
		is   func(*stuck)
	}{
		{"attacher-down", attacherDown}, // the longest: two minutes
		{"node-recreated", nodeRecreated},
		{"node-deleted", nodeDeleted},
		{"holder-in-use", holderInUse},
		{"holder-unmounting", holderUnmounting},
		{"detach-refused", detachRefused},
		{"uncertain-attach", uncertainAttach},
		{"taint-on-ready-node", taintOnReadyNode},
		{"va-deleted-by-hand", attachmentDeletedByHand},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel() // each has a volume of its own
			s := &stuck{&labtest.Stuck{T: t, Scene: scene, Name: one.name, Began: time.Now()}}
			t.Cleanup(s.Story)
			one.is(s)
			t.Logf("%.0f s", time.Since(s.Began).Seconds())
		})
	}
}

// holderInUse: the other pod runs and is meant to.
func holderInUse(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Wait()
	text := s.Hears(`Multi-Attach error for volume "`+s.Volume+`"`, "already used by pod(s) "+s.Pod("holder"), `node "node-1"`, "once the pods there have terminated")
	s.since(text)
	s.Remove("holder")
	s.Arrives()
}

// holderUnmounting: the other pod is gone and its node does not get the volume unmounted.
func holderUnmounting(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	lift := s.Fault(labdisk.Fault{Method: "NodeUnstageVolume", Node: labtest.Holding, Effect: labdisk.EffectHang})
	s.Wait()
	s.Hears("already used by pod(s) " + s.Pod("holder"))
	s.Remove("holder")
	text := s.Hears(`for node "node-1" to unmount it`, "while the node is Ready")
	s.since(text)
	lift()
	s.Arrives()
}

// detachRefused: the storage says no.
func detachRefused(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	lift := s.Fault(labdisk.Fault{
		Method: "ControllerUnpublishVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "a snapshot of the disk is being taken",
	})
	s.Wait()
	s.Remove("holder")
	s.Hears(`detach from node "node-1", which fails and is retried by the attacher of CSI driver `+labdisk.DriverDisk, "a snapshot of the disk is being taken")
	lift()
	s.Arrives()
}

// attacherDown: nothing carries out the detach.
func attacherDown(s *stuck) {
	s.Hold(labtest.Holding, "labshare")
	if err := s.Scene.Cluster.Stop(s.Context(), shareAttacher); err != nil {
		s.Fatal(err)
	}
	s.Remove("holder")
	s.Wait()
	s.Hears("for the attacher of CSI driver " + labdisk.DriverShare + ` to detach it from node "node-1")`)
	text := s.Hears("attacher of CSI driver "+labdisk.DriverShare+` to detach it from node "node-1"`, "Check that its pod is running")
	s.since(text)
	if err := s.Scene.Cluster.RunAttacher(shareAttacher); err != nil {
		s.Fatal(err)
	}
	s.Arrives()
}

// nodeDeleted: the Node is deleted and does not come back.
func nodeDeleted(s *stuck) {
	s.Hold(deleted, scenario.StorageClass)
	s.Wait()
	s.Hears("already used by pod(s) " + s.Pod("holder"))
	s.DeleteNode(deleted)
	s.Hears(`node "node-3" was deleted`, "its pods still exist") // for a minute: then PodGC deletes them
	s.Vanish("holder")
	text := s.Hears(`node "node-3" was deleted`, "detached by force at")
	at := s.stamp(text, "by force at ")
	s.Arrives()
	if late := time.Since(at); late < 0 || late > time.Minute {
		s.Errorf("the event announced %v; the pod runs %v after", at, late)
	}
}

// nodeRecreated: the Node registers again, on the same boot, and never lists the volume.
func nodeRecreated(s *stuck) {
	s.Hold(recreated, scenario.StorageClass)
	s.Wait()
	s.Hears("already used by pod(s) " + s.Pod("holder"))
	s.DeleteNode(recreated)
	s.Vanish("holder")
	s.Called("NodeUnstageVolume", recreated, true)
	if err := s.Scene.Cluster.Kill(recreated + "/" + nodes.ChildAgent); err != nil {
		s.Fatal(err)
	}
	text := s.Hears(`node "node-4" was deleted, has registered again`, "not before ")
	at := s.stamp(text, "not before ")
	s.Arrives()
	if late := time.Since(at); late < 0 || late > time.Minute {
		s.Errorf("the event announced %v; the pod runs %v after", at, late)
	}
}

// uncertainAttach: the volume is being attached to another node, and whether it is there is unknown.
func uncertainAttach(s *stuck) {
	s.Claim(scenario.StorageClass)
	lift := s.Fault(labdisk.Fault{
		Method: "ControllerPublishVolume", Node: labtest.Holding, Effect: labdisk.EffectLostReply, Delay: 5 * time.Second,
		Code: "DeadlineExceeded", Message: "the storage did not answer in time",
	})
	s.Create("holder", labtest.Holding)
	s.Called("ControllerPublishVolume", labtest.Holding, false)
	s.Wait()
	text := s.Hears(`may be attached to node "node-1", because an attach requested at`, "no answer yet")
	s.recent(s.stamp(text, "requested at "))
	s.Hears(`may be attached to node "node-1"`, "failed", "retried", "the storage did not answer in time")
	lift()
	s.Remove("holder")
	s.Arrives()
}

// taintOnReadyNode: a person says that the machine is off, and it is not.
func taintOnReadyNode(s *stuck) {
	s.Hold(tainted, scenario.StorageClass)
	lift := s.Fault(labdisk.Fault{Method: "NodeUnstageVolume", Node: tainted, Effect: labdisk.EffectHang})
	s.Wait()
	if err := s.Scene.MarkOutOfService(s.Context(), tainted); err != nil {
		s.Fatal(err)
	}
	text := s.Hears(`for node "node-5" to unmount it`, "taint node.kubernetes.io/out-of-service", "Ready", "remove the taint")
	s.since(text)
	lift()
	s.Arrives()
}

// attachmentDeletedByHand: the volume is attached again at once, and the mount stays dead.
func attachmentDeletedByHand(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	name := kube.AttachmentName(s.Handle, labdisk.DriverDisk, labtest.Holding)
	attachments := s.Scene.Client.StorageV1().VolumeAttachments()
	if err := attachments.Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	for kind, name := range map[string]string{"Pod": s.Pod("holder"), "PersistentVolumeClaim": s.Name} {
		s.Reads(kind, name, "VolumeDetachedInUse", `volume "`+s.Volume+`"`, `node "node-1"`, "Delete the pods that use it on this node")
	}
	s.Remove("holder")
	s.Wait()
	s.Arrives()
}

// stuck is a situation whose events are read.
type stuck struct{ *labtest.Stuck }

var stampPattern = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// stamp is the time in the text behind some words.
func (s *stuck) stamp(text, behind string) time.Time {
	s.Helper()
	_, rest, _ := strings.Cut(text, behind)
	at, err := time.Parse(time.RFC3339, stampPattern.FindString(rest))
	if err != nil {
		s.Errorf("no time behind %q: %s", behind, text)
	}
	return at
}

// since checks since when the text says that the wait lasts.
func (s *stuck) since(text string) {
	s.Helper()
	s.recent(s.stamp(text, "since "))
}

// recent checks that the time is one of this test.
func (s *stuck) recent(at time.Time) {
	s.Helper()
	if at.Before(s.Began.Add(-time.Second)) || at.After(time.Now()) {
		s.Errorf("the event names %v, the test began at %v", at, s.Began)
	}
}
