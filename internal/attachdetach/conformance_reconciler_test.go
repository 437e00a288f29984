package attachdetach

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
)

// The cases of upstream's reconciler_test.go (k/k v1.36.3,
// pkg/controller/volume/attachdetach/reconciler), by their names.

func doNothing(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	requests := l.counts(func(r *http.Request) bool {
		return r.Method != http.MethodGet && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"+l.name("a"))
	})
	l.settled("b")
	if n := requests.count(); n != 0 {
		l.Errorf("%d writes to a node without pods", n)
	}
	l.lived("b made", "b attached")
}

func oneDesiredVolumeAttach(l *lab) {
	l.attachedOnA()
	l.awaitPodEvent("p", explain.SuccessfulAttachVolume, explain.AttachSucceeded(l.name("v")))
	l.lived("a made", "a attached")
}

func attachThenDetachUnmounted(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.use("a", "v")
	l.use("a")
	deletes := l.counts(isDetach)
	l.gone("p")
	l.awaitDetached("v", "a")
	l.settled("b")
	l.lived("a made", "a attached", "a deleting", "a gone", "b made", "b attached")
	if n := deletes.count(); n != 1 {
		l.Errorf("%d detaches, want 1", n)
	}
}

func attachThenDetachMounted(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.health("a", corev1.ConditionUnknown)
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.awaitDetached("v", "a")
	l.forced("timeout")
	l.lived("a made", "a attached", "a deleting", "a gone")
}

func updateStatusFail(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	met := l.fails(isReport)
	l.gone("p")
	l.meet("the report is withdrawn", met)
	l.never("detached although the report could not be withdrawn", long, func() bool {
		va := l.attachment("v", "a")
		return va == nil || va.DeletionTimestamp != nil
	})
	l.kept("v", "a", uid)
	l.breaks(nil)
	l.awaitDetached("v", "a")
	l.lived("a made", "a attached", "a deleting", "a gone")
}

func readWriteMany(l *lab) {
	l.readyNode("a", "b")
	l.volume("v", corev1.ReadWriteMany)
	l.attacher.set(func() { l.attacher.stalled = true })
	l.pod("p", "a", "v")
	l.pod("q", "b", "v")
	l.await("both attaches under way at once", func() bool {
		return l.attachment("v", "a") != nil && l.attachment("v", "b") != nil
	})
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitReported("v", "a")
	l.awaitReported("v", "b")
	second := l.read("v", "b").UID
	l.gone("p")
	l.awaitDetached("v", "a")
	l.kept("v", "b", second)
	l.gone("q")
	l.awaitDetached("v", "b")
}

func readWriteOnce(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.pod("q", "b", "v")
	l.await("attached to one of both", func() bool { return l.isReported("v", "a") || l.isReported("v", "b") })
	on, off, winner, loser := "a", "b", "p", "q"
	l.mu.Lock()
	if l.isReported("v", "b") {
		on, off, winner, loser = off, on, loser, winner
	}
	l.mu.Unlock()
	l.refused(loser, "v", off)
	l.awaitPodEvent(loser, explain.FailedAttachVolume, l.heldBy("v", on, winner))
	if l.read("v", off) != nil {
		l.Fatal("S1: attached to both")
	}
	l.gone(winner)
	l.awaitReported("v", off)
	l.lived(on+" made", on+" attached", on+" deleting", on+" gone", off+" made", off+" attached")
}

// An attach that fails leaves the volume uncertain: not reported, detached when the
// pod goes, and only then attached elsewhere.
func uncertainNode(l *lab) {
	const refusal = "rpc error: code = DeadlineExceeded desc = timed out"
	l.readyNode("a", "b")
	l.volume("v")
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) {
			if va.Spec.NodeName == l.name("a") && va.DeletionTimestamp == nil {
				return false, refusal
			}
			return false, ""
		}
	})
	l.pod("p", "a", "v")
	l.awaitPodEvent("p", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), refusal))
	l.uncertain()
	l.lived("a made", "a deleting", "a gone", "b made", "b attached")
}

// The attacher does not answer at all.
func timeoutNode(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) {
			return va.Spec.NodeName == l.name("a") && va.DeletionTimestamp == nil, ""
		}
	})
	l.pod("p", "a", "v")
	l.await("attach begun", func() bool { return l.attachment("v", "a") != nil })
	l.uncertain()
	l.lived("a made", "a gone", "b made", "b attached")
}

func (l *lab) uncertain() {
	l.Helper()
	l.pod("q", "b", "v")
	l.refused("q", "v", "b") // it is unknown whether the first attach succeeded
	l.mu.Lock()
	reported := l.isReported("v", "a")
	l.mu.Unlock()
	if reported {
		l.Fatal("S9: reported though not confirmed")
	}
	l.gone("p")
	l.awaitDetached("v", "a")
	l.awaitReported("v", "b")
}

// A report that could not be withdrawn stays, and a pod that comes back finds the
// volume where it was.
func updateNodeStatusFailBeforeDetach(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	met := l.fails(isReport)
	l.gone("p")
	l.meet("the report is withdrawn", met)
	if !l.onServer("v", "a") {
		l.Error("the report is gone though its withdrawal failed")
	}
	l.pod("q", "a", "v")
	l.settledQuietly() // the controller knows it
	l.breaks(nil)
	l.settled("a")
	l.kept("v", "a", uid)
	if !l.onServer("v", "a") {
		l.Error("not reported for the second pod")
	}
}

// onServer reports whether the node reports the volume at the API server.
func (l *lab) onServer(volume, node string) bool {
	l.Helper()
	n := &corev1.Node{}
	l.must(l.Get(l.ctx, keyOf(l.name(node)), n))
	for _, v := range n.Status.VolumesAttached {
		if string(v.Name) == l.unique(volume) {
			return true
		}
	}
	return false
}

// A detach that the API server does not take: the volume is withdrawn and counts as
// attached; a pod of the same node gets it again, one of another node does not.
func detachFail(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	uid := l.read("v", "a").UID
	met := l.fails(isDetach)
	l.gone("p")
	l.meet("the attachment is deleted", met)
	if l.onServer("v", "a") {
		l.Fatal("S3: detached while it is reported")
	}
	l.await("not reported", func() bool { return !l.isReported("v", "a") })
	l.pod("q", "a", "v")
	l.awaitReported("v", "a")
	l.kept("v", "a", uid)
	l.pod("r", "b", "v")
	l.refused("r", "v", "b")
	l.awaitPodEvent("r", explain.FailedAttachVolume, l.heldBy("v", "a", "q"))
	if l.read("v", "b") != nil {
		l.Fatal("S1: attached to a second node after a failed detach")
	}
	l.kept("v", "a", uid)
}

// The driver refuses to detach: the object stays, and with it the volume.
func detachRefused(l *lab) {
	const refusal = "rpc error: code = Internal desc = volume is busy"
	l.readyNode("a", "b")
	l.volume("v")
	refused := refusal
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) {
			if va.DeletionTimestamp != nil {
				return false, refused
			}
			return false, ""
		}
	})
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.gone("p")
	l.await("the driver refused", func() bool {
		va := l.attachment("v", "a")
		return va != nil && va.Status.DetachError != nil && !l.isReported("v", "a")
	})
	l.pod("q", "b", "v")
	l.pod("r", "a", "v")
	l.awaitPodEvent("r", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), explain.BeingDeleted(refusal)))
	l.settled("a")
	if l.read("v", "b") != nil {
		l.Fatal("S1: attached to a second node although the driver did not detach")
	}
	if l.onServer("v", "a") {
		l.Fatal("S9: reported while being deleted")
	}
	l.attacher.set(func() { refused = "" })
	l.await("attached once to one of both", func() bool { return l.isReported("v", "a") || l.isReported("v", "b") })
}

func outOfServiceTaint(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.health("a", corev1.ConditionFalse)
	l.taint("a")
	l.gone("p")
	l.awaitDetached("v", "a")
	l.forced("out-of-service")
	l.lived("a made", "a attached", "a deleting", "a gone")
}

func noOutOfServiceTaint(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.never("S2: detached in use without the taint", long, func() bool { return l.detaching("v", "a") })
	l.kept("v", "a", uid)
}

// detaching reports whether a detach has started; hold l.mu.
func (l *lab) detaching(volume, node string) bool {
	va := l.attachment(volume, node)
	return va == nil || va.DeletionTimestamp != nil || !l.isReported(volume, node)
}

func unhealthyNode(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.never("S2: detached from a healthy node that uses it", long, func() bool { return l.detaching("v", "a") })
	l.health("a", corev1.ConditionFalse)
	l.awaitDetached("v", "a")
	l.forced("timeout")
	l.lived("a made", "a attached", "a deleting", "a gone")
}

func unhealthyNodeForceDetachDisabled(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.health("a", corev1.ConditionFalse)
	l.never("S2: detached by a timer that is off", long, func() bool { return l.detaching("v", "a") })
	l.taint("a")
	l.awaitDetached("v", "a")
	l.forced("out-of-service")
	l.lived("a made", "a attached", "a deleting", "a gone")
}

// multiAttach is one case of Test_ReportMultiAttachError: the other users of the volume, and the message about them.
// The text that belay adds follows in parentheses.
func multiAttach(name, words string, holders ...string) scenario {
	return play("Test_ReportMultiAttachError/"+name, func(l *lab) {
		l.readyNode("a", "b")
		l.volume("v")
		foreign := l.prefix + "-other"
		claimed := map[string]string{l.prefix: "v"}
		for _, holder := range holders {
			namespace := l.prefix
			if strings.HasPrefix(holder, "ns2/") {
				namespace = foreign
			}
			if claimed[namespace] == "" {
				l.shareWith(namespace, "v")
				claimed[namespace] = "v"
			}
			l.podIn(namespace, strings.TrimPrefix(holder, "ns2/"), "b", "v")
		}
		if len(holders) == 0 { // attached, and no pod wants it
			l.pod("first", "b", "v")
			l.awaitReported("v", "b")
			l.awaitUsing("v", "b", "a")
			l.gone("first")
		}
		l.awaitReported("v", "b")
		l.pod("pod1", "a", "v")
		l.await("pod1 has the event", func() bool { return len(l.messages("pod1", explain.FailedAttachVolume)) > 0 })
		l.mu.Lock()
		defer l.mu.Unlock()
		got := l.messages("pod1", explain.FailedAttachVolume)
		where := fmt.Sprintf("attached to node %q", l.name("b"))
		if len(holders) == 0 {
			where = fmt.Sprintf("for node %q to unmount it", l.name("b"))
		}
		want := fmt.Sprintf("Multi-Attach error for volume %q %s (", l.name("v"), words)
		if len(got) != 1 || !strings.HasPrefix(got[0], want) || !strings.Contains(got[0], where) {
			l.Errorf("got %q, want %q and %q", got, want, where)
		}
		for _, e := range l.events {
			if e.InvolvedObject.Name == "pod1" && (e.Type != corev1.EventTypeWarning || e.Source.Component != "attachdetach-controller") {
				l.Errorf("event of type %s from %s", e.Type, e.Source.Component)
			}
		}
	})
}

// shareWith gives the volume to a claim of another namespace, by a second
// PersistentVolume with the same handle.
func (l *lab) shareWith(namespace, volume string) {
	l.Helper()
	l.must(l.Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: volume},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: namespace + volume, StorageClassName: new(""), Resources: storage(),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	l.must(l.Create(l.ctx, claim))
	l.patchStatus(&corev1.PersistentVolumeClaim{}, namespace, volume, map[string]any{"phase": corev1.ClaimBound})
	l.must(l.Create(l.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + volume},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: storage().Requests,
			PersistentVolumeSource: csiPV(driver, l.name(volume)),
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: volume, UID: claim.UID},
		},
	}))
}

func (l *lab) podIn(namespace, name, node, claim string) {
	l.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName: l.name(node), Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: ofClaim(claim)}},
		},
	}
	l.must(l.Create(l.ctx, pod))
	l.Cleanup(func() { _ = l.Delete(l.background(), pod) })
}

var errUpstream = errors.New("test generated error") // its status updater's word

// The cases of upstream's node_status_updater_test.go.

func twoNodesUpdate(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.volume("w")
	l.pod("p", "a", "v")
	l.pod("q", "b", "w")
	l.awaitReported("v", "a")
	l.awaitReported("w", "b")
	l.mu.Lock()
	defer l.mu.Unlock()
	for node, volume := range map[string]string{"a": "v", "b": "w"} {
		list := l.nodes[l.name(node)].Status.VolumesAttached
		if len(list) != 1 || string(list[0].Name) != l.unique(volume) || list[0].DevicePath != "" {
			l.Errorf("node %s reports %v, want only %s", node, list, l.unique(volume))
		}
	}
}

// One node's failure keeps no other waiting, and is tried again.
func failureInFirstUpdate(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.volume("w")
	failed := l.tally()
	l.breaks(func(r *http.Request) error {
		if isReport(r) && strings.Contains(r.URL.Path, "/"+l.name("a")+"/") && failed.add() == 1 {
			return errUpstream
		}
		return nil
	})
	l.pod("p", "a", "v")
	l.pod("q", "b", "w")
	l.awaitReported("w", "b")
	l.awaitReported("v", "a")
	if n := failed.count(); n < 2 {
		l.Errorf("%d writes for the node whose first one failed", n)
	}
}

// A change for one node writes to that node only.
func updateNodeStatusForNode(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.volume("w")
	l.pod("q", "b", "w")
	l.awaitReported("w", "b")
	other := l.counts(func(r *http.Request) bool { return isReport(r) && strings.Contains(r.URL.Path, "/"+l.name("b")+"/") })
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.gone("p")
	l.awaitDetached("v", "a")
	if n := other.count(); n != 0 {
		l.Errorf("%d writes to a node that had nothing to do with it", n)
	}
}

func reconcilerCases() []scenario {
	return []scenario{
		play("Test_Run_Positive_DoNothing", doNothing),
		play("Test_Run_Positive_OneDesiredVolumeAttach", oneDesiredVolumeAttach),
		play("Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithUnmountedVolume", attachThenDetachUnmounted),
		play("Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithMountedVolume", attachThenDetachMounted),
		play("Test_Run_Negative_OneDesiredVolumeAttachThenDetachWithUnmountedVolumeUpdateStatusFail", updateStatusFail),
		play("Test_Run_OneVolumeAttachAndDetachMultipleNodesWithReadWriteMany", readWriteMany),
		play("Test_Run_OneVolumeAttachAndDetachMultipleNodesWithReadWriteOnce", readWriteOnce),
		play("Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce", uncertainNode),
		play("Test_Run_OneVolumeAttachAndDetachTimeoutNodesWithReadWriteOnce", timeoutNode),
		play("Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce", updateNodeStatusFailBeforeDetach),
		play("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce", detachFail),
		play("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce/refused by the driver", detachRefused),
		play("Test_Run_OneVolumeDetachOnOutOfServiceTaintedNode", outOfServiceTaint),
		play("Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode", noOutOfServiceTaint),
		play("Test_Run_OneVolumeDetachOnUnhealthyNode", unhealthyNode),
		multiAttach("no pods use the volume",
			"Volume is already exclusively attached to one node and can't be attached to another"),
		multiAttach("pods in the same namespace use the volume", "Volume is already used by pod(s) pod2", "pod2"),
		multiAttach("pods in another namespace use the volume",
			"Volume is already used by 1 pod(s) in different namespaces", "ns2/pod2"),
		multiAttach("pods both in the same and another namespace use the volume",
			"Volume is already used by pod(s) pod3 and 1 pod(s) in different namespaces", "ns2/pod2", "pod3"),
		play("TestNodeStatusUpdater_UpdateNodeStatuses_TwoNodesUpdate", twoNodesUpdate),
		play("TestNodeStatusUpdater_UpdateNodeStatuses_FailureInFirstUpdate", failureInFirstUpdate),
		play("TestNodeStatusUpdater_UpdateNodeStatusForNode", updateNodeStatusForNode),
	}
}

// The cases for which kube-controller-manager was started with
// --disable-force-detach-on-timeout.
func withoutForceCases() []scenario {
	return []scenario{
		play("Test_Run_OneVolumeDetachOnUnhealthyNodeWithForceDetachOnUnmountDisabled", unhealthyNodeForceDetachDisabled),
	}
}

// withForceCases are the cases under kube-controller-manager's defaults.
func withForceCases() []scenario {
	return slices.Concat(reconcilerCases(), controllerCases(), migratedCases(), csiCases())
}

// TestUpstream plays upstream's own test cases against the real API server. What they
// observe is VolumeAttachments, node.status.volumesAttached, events and metrics.
func TestUpstream(t *testing.T) {
	enact(t, upstream(), withForceCases()...)
	enact(t, upstream(), restartCases()...)
	disabled := upstream()
	disabled.Policy.UnmountTimeout = 0
	enact(t, disabled, withoutForceCases()...)
	t.Run("TestPodDelete_Tombstone", podTombstone)
}
