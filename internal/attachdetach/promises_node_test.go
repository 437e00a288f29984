package attachdetach

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// Scenarios of TestPromises about Nodes that come back, and about what nodes write into
// their own lists.

func nodeCases() []scenario {
	return []scenario{
		play("another machine under the node's name, by systemUUID", func(l *lab) {
			anotherMachine(l, func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "hw-other" })
		}),
		play("another machine under the node's name, by providerID", func(l *lab) {
			anotherMachine(l, func(n *corev1.Node) {
				n.Spec.ProviderID = "test://other"
				n.Status.NodeInfo.SystemUUID = "" // not known
			})
		}),
		play("out-of-service taint on a Ready node", taintedReady),
	}
}

func listCases() []scenario {
	return []scenario{
		play("volume in use on a node that was never given it", func(l *lab) { listedByItsNode(l, false) }),
		play("volume reported and in use by the node's own writes", func(l *lab) { listedByItsNode(l, true) }),
		play("VolumeAttachment removed under a node that uses it", removedInUse),
	}
}

// returnedSilent: kubelet unmounted everything before it was restarted, so that the new
// Node never lists the volume.
func returnedSilent(l *lab) {
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	l.shut("a")
	l.registers("a")
	l.renews("a")
	l.settled("a")
	l.pod("q", "b", "v")
	start := time.Now()
	l.gone("p")
	l.within(90*time.Second, "detached from the Ready node that does not list it", func() bool { return l.attachment("v", "a") == nil })
	if took := time.Since(start); took < 30*time.Second {
		l.Errorf("S2: a list that may be incomplete was believed after %v", took)
	}
	l.awaitReported("v", "b")
	l.awaitEvent("q", fmt.Sprintf("node %q was deleted, has registered again", l.name("a")), "it is detached, but not before ")
}

// within is await with a limit of its own.
func (l *lab) within(d time.Duration, what string, holds func() bool) {
	l.Helper()
	start := time.Now()
	l.await(what, holds)
	if took := time.Since(start); took > d {
		l.Errorf("%s: took %v, want at most %v", what, took, d)
	}
}

// anotherMachine registers under the name of the node that uses the volume. That node may still write: its volume is
// detached only by the policy for a node that is gone.
func anotherMachine(l *lab, other func(*corev1.Node)) {
	l.registers("a", func(n *corev1.Node) { n.Spec.ProviderID = "test://first" })
	l.readyNode("b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.awaitUsing("v", "a", "b")
	l.pod("q", "b", "v")
	l.shut("a")
	start := time.Now()
	l.registers("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-other" }, other)
	l.gone("p")
	l.await("detach begun", func() bool {
		va := l.attachment("v", "a")
		return va == nil || va.DeletionTimestamp != nil
	})
	if took := time.Since(start); took < unmountTimeout {
		l.Errorf("S2: detached after %v although the machine before may still write", took)
	}
	l.await("by force", func() bool {
		return anyContains(l.objectMessages("PersistentVolumeClaim", "v", explain.DetachingVolume), "which may still use it")
	})
	l.forced("timeout")
	l.awaitEvent("q", fmt.Sprintf("another machine has registered as node %q", l.name("a")))
	l.awaitReported("v", "b")
}

func anyContains(texts []string, part string) bool {
	for _, text := range texts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// listedByItsNode: a node may write anything into its own status. The volume was never reported to it, so other nodes
// get it.
func listedByItsNode(l *lab, reported bool) {
	l.readyNode("a", "b")
	l.volume("v")
	l.settled("b") // the controller leads: what it finds then it believes
	if reported {
		l.lists("a", l.unique("v"))
	}
	l.awaitUsing("v", "a", "b")
	l.pod("q", "b", "v")
	l.awaitReported("v", "b")
	if l.read("v", "a") != nil {
		l.Error("attached to a node without a pod that wants it")
	}
}

// removedInUse: a node that was given the volume keeps it, although nothing but its own
// lists shows that any more.
func removedInUse(l *lab) {
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.removed("v", "a")
	l.await("removed", func() bool { return l.attachment("v", "a") == nil })
	l.pod("q", "b", "v")
	l.settled("b")
	l.never("S1: attached elsewhere while the node reports and uses it", long, func() bool { return l.attachment("v", "b") != nil })
	l.use("a")
	l.awaitReported("v", "b")
}

// taintedReady: the wrong node has the taint, or the right one has it too early.
func taintedReady(l *lab) {
	uid := l.heldByA()
	l.taint("a")
	l.settled("b")
	l.never("S2: detached in use from a Ready node", long, func() bool { return l.detaching("v", "a") })
	l.awaitEvent("q", "which does not force the detach as long as the node is Ready")
	l.kept("v", "a", uid)
	l.health("a", corev1.ConditionUnknown)
	l.awaitReported("v", "b")
	l.forced("out-of-service")
}
