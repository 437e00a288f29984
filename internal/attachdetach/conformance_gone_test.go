package attachdetach

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// Scenarios of TestUpstreamLacks about nodes that went, restarts, and watch gaps.

// inUseOnDeletedNode leaves a volume in use on a node whose object is gone.
func (l *lab) inUseOnDeletedNode() types.UID {
	l.Helper()
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	uid := l.read("v", "a").UID
	l.use("a", "v")
	l.await("in use", func() bool { return len(l.nodes[l.name("a")].Status.VolumesInUse) == 1 })
	l.settled("b") // the controller has seen it too
	l.shut("a")
	l.gone("p")
	return uid
}

func nodeDeletedTimeout(l *lab) {
	l.inUseOnDeletedNode()
	l.awaitWaiting("v", "a")
	l.pod("q", "b", "v")
	l.awaitDetached("v", "a")
	l.forced("timeout")
	l.awaitReported("v", "b")
}

func nodeDeletedNeverForced(l *lab) {
	uid := l.inUseOnDeletedNode()
	l.awaitWaiting("v", "a")
	l.pod("q", "b", "v")
	l.never("S2: detached from a deleted node that used it", long, func() bool { return l.attachment("v", "a") == nil })
	l.kept("v", "a", uid)
	l.mu.Lock()
	if l.attachment("v", "b") != nil {
		l.Error("S1: attached elsewhere")
	}
	l.mu.Unlock()
	l.readyNode("a") // it comes back, and reports that it has unmounted the volume
	l.renews("a")
	l.use("a", "v")
	node := &corev1.Node{}
	l.must(l.Get(l.ctx, client.ObjectKey{Name: l.name("a")}, node))
	l.await("the new Node lists the volume in use, and it is reported there", func() bool {
		n := l.nodes[l.name("a")]
		return n != nil && n.UID == node.UID && slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(l.unique("v"))) && l.isReported("v", "a")
	})
	l.use("a")
	l.awaitDetached("v", "a")
	l.awaitReported("v", "b")
}

func nodeDeletedDetached(l *lab) {
	l.inUseOnDeletedNode()
	l.pod("q", "b", "v")
	l.awaitDetached("v", "a")
	l.forced("deleted-node")
	l.awaitReported("v", "b")
}

// The clock of the unmount timeout starts when the pod object goes, not before.
func deadKubelet(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.use("a", "v")
	l.running("p")
	l.health("a", corev1.ConditionUnknown)
	l.ending("p")
	l.never("S2: detached from a pod that runs, for all that is known", long, func() bool {
		return l.detaching("v", "a") || l.attachment("v", "a").Annotations[kube.DetachRequestedAnnotation] != ""
	})
	l.kept("v", "a", uid)
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.awaitDetached("v", "a")
	l.forced("timeout")
}

// The node gets the taint before it becomes not Ready, so that the unmount timeout cannot come first.
func taintOfAnyEffect(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name("a")}}
	body := fmt.Appendf(nil, `{"spec": {"taints": [{"key": %q, "effect": "NoSchedule"}]}}`, kube.OutOfServiceTaint)
	l.must(l.Patch(l.ctx, n, client.RawPatch(types.MergePatchType, body)))
	l.health("a", corev1.ConditionFalse)
	l.awaitDetached("v", "a")
	l.forced("out-of-service")
}

// A node that is Ready is alive, whatever a taint says.
func taintOnReadyNode(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.taint("a")
	l.never("S2: detached in use from a Ready node with the taint", long, func() bool { return l.detaching("v", "a") })
	l.kept("v", "a", uid)
	l.health("a", corev1.ConditionUnknown)
	l.awaitDetached("v", "a")
	l.forced("out-of-service")
}

// k/k#142331: the taint is gone by the time of the write, and the node lives.
func taintTakenOff(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	off := l.tally()
	l.breaks(func(r *http.Request) error {
		if isReport(r) && off.add() == 1 {
			l.health("a", corev1.ConditionTrue)
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name("a")}}
			return l.Patch(l.background(), n, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"taints": null}}`)))
		}
		return nil
	})
	l.taint("a")
	l.health("a", corev1.ConditionFalse) // only now, so that the unmount timeout cannot come first
	l.await("the withdrawal was tried", func() bool {
		return off.count() > 0 && len(l.nodes[l.name("a")].Spec.Taints) == 0 || l.detaching("v", "a")
	})
	l.readyNode("b")
	l.settled("b")
	l.kept("v", "a", uid)
	if !l.onServer("v", "a") {
		l.Error("S2: withdrawn from a node that is in service and uses it")
	}
}

func clockOutlives(l *lab) acts {
	var requested string
	return acts{
		before: func() {
			l.readyNode("a")
			l.volume("v")
			l.pod("p", "a", "v")
			l.awaitReported("v", "a")
			l.use("a", "v")
			l.gone("p")
			l.awaitWaiting("v", "a")
			requested = l.read("v", "a").Annotations[kube.DetachRequestedAnnotation]
		},
		after: func() {
			l.settled("a")
			if now := l.read("v", "a").Annotations[kube.DetachRequestedAnnotation]; now != requested {
				l.Errorf("detach requested at %s became %s", requested, now)
			}
			l.health("a", corev1.ConditionUnknown)
			l.awaitDetached("v", "a")
			l.forced("timeout")
			at, err := time.Parse(time.RFC3339, requested)
			if early := unmountTimeout - time.Since(at); err != nil || early > 0 {
				l.Errorf("forced %v too early (%v)", early, err)
			}
		},
	}
}

// k/k#141151.
func driverTurnedWhileDown(l *lab) acts {
	var name string
	return acts{
		before: func() {
			name = l.driverObject("d", nil)
			l.readyNode("a")
			l.pvOf("v", csiPV(name, l.name("v")))
			l.pod("p", "a", "v")
			l.awaitAt(name, l.name("v"), "a")
		},
		down:  func() { l.turn(name, false); l.mounted("p") },
		after: func() { l.awaitNotAt(name, l.name("v"), "a") },
	}
}

// k/k#77324: upstream passes over attachments without a PersistentVolume.
func inlineWithoutPod(l *lab) acts {
	disk := "inline2-" + l.prefix
	return acts{
		before: func() {
			l.readyNode("a")
			l.podOf("p", "a", corev1.Volume{VolumeSource: corev1.VolumeSource{
				GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: disk},
			}})
			l.awaitAt(gcePD, pdHandle(disk), "a")
		},
		down:  func() { l.gone("p") },
		after: func() { l.awaitNotAt(gcePD, pdHandle(disk), "a") },
	}
}

// k/k#81097: the leader goes between the delete and its answer by the driver.
func detachUnderWay(l *lab) acts {
	return acts{
		before: func() {
			l.readyNode("a", "b")
			l.volume("v")
			l.pod("p", "a", "v")
			l.awaitReported("v", "a")
			l.attacher.set(func() { l.attacher.stalled = true })
			l.gone("p")
			l.await("detach begun", func() bool { return l.attachment("v", "a").DeletionTimestamp != nil })
		},
		down: func() { l.pod("q", "b", "v") },
		after: func() {
			l.never("S1: attached to a second node while the first detach is under way", time.Second,
				func() bool { return l.attachment("v", "b") != nil })
			l.attacher.set(func() { l.attacher.stalled = false })
			l.awaitReported("v", "b")
		},
	}
}

// k/k#111327: a pod is replaced, and the watch shows one change of one pod.
func podReplacedInGap(t *testing.T) {
	l := newLab(t)
	l.options = upstream()
	gap := &gap{path: "/api/v1/pods"}
	l.transport = gap.wrap
	l.readyNode("a", "b")
	l.volume("v")
	l.volume("w")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	gap.open()
	l.gone("p")
	l.pod("p", "b", "w")
	gap.close()
	l.awaitDetached("v", "a")
	l.awaitReported("w", "b")
	gap.check(t)
}

// Upstream does not heed the deletion of a Node that it missed. As long as the Node
// seems to be there, Ready and using the volume, no timeout ends its use.
func nodeDeletedInGap(t *testing.T) {
	l := newLab(t)
	l.options = upstream()
	gap := &gap{path: "/api/v1/nodes"}
	l.transport = gap.wrap
	l.readyNode("a", "b")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.use("a", "v")
	l.settled("b") // the controller has seen it
	gap.open()
	l.shut("a")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.pod("q", "b", "v")
	gap.close()
	l.awaitReported("v", "b")
	l.lived("a made", "a attached", "b made", "b attached", "a attached", "a deleting", "a gone", "b made", "b attached")
	gap.check(t)
}
