package attachdetach

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// Scenarios of TestPromises about the events on the pod that waits.

func eventCases() []scenario {
	return []scenario{
		play("event: in use on a Ready node", eventInUse),
		play("event: pods on a node that is not Ready", eventHolderNotReady),
		play("event: detach refused by the driver", eventDetachRefused),
		play("event: Node deleted", eventNodeDeleted),
		play("event: attach elsewhere failed", eventAttachFailed),
		play("event: attach elsewhere unanswered", eventAttachUnanswered),
		play("event: VolumeAttachment deleted in use", eventDetachedInUse),
		play("event: the driver lists the volume at another node too", eventListedElsewhere),
	}
}

// heldByA has pod q wait on node b for a volume whose pod on node a is gone, and which
// node a still lists in use.
func (l *lab) heldByA() (attachment types.UID) {
	l.Helper()
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	l.pod("q", "b", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	return l.read("v", "a").UID
}

// awaitEvent waits for events on the pod that say why it waits for its volume.
func (l *lab) awaitEvent(pod string, parts ...string) {
	l.Helper()
	for _, part := range parts {
		l.await(fmt.Sprintf("an event on pod %s that says %q", pod, part), func() bool {
			return anyContains(l.messages(pod, explain.FailedAttachVolume), part)
		})
	}
}

func eventInUse(l *lab) {
	uid := l.heldByA()
	l.awaitEvent("q", fmt.Sprintf("for node %q to unmount it", l.name("a")), "the volume is not detached by force while the node is Ready")
	l.kept("v", "a", uid)
	l.use("a")
	l.awaitReported("v", "b")
}

// A node with a running pod loses power. An event on the waiting pod reports that nothing ends the wait by itself, and
// another one when the node is back.
func eventHolderNotReady(l *lab) {
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	l.pod("q", "b", "v")
	l.awaitEvent("q", "it is detached once the pods there have terminated")
	l.health("a", corev1.ConditionUnknown)
	l.awaitEvent("q", "the node is not Ready, so the pods there cannot terminate by themselves, and no timer runs yet")
	l.gone("p")
	l.awaitEvent("q", "the volume is detached by force at ")
	l.awaitReported("v", "b")
	l.forced("timeout")
}

func eventDetachRefused(l *lab) {
	const refusal = "rpc error: code = Internal desc = the array is busy"
	l.attachedOnA()
	l.readyNode("b")
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) {
			if va.DeletionTimestamp == nil {
				return false, ""
			}
			return false, refusal
		}
	})
	l.pod("q", "b", "v")
	l.gone("p")
	l.awaitEvent("q", refusal, fmt.Sprintf("the detach from node %q, which fails", l.name("a")))
	l.attacher.set(func() { l.attacher.mood = nil })
	l.awaitReported("v", "b")
}

func eventNodeDeleted(l *lab) {
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	l.pod("q", "b", "v")
	l.shut("a")
	l.awaitEvent("q", fmt.Sprintf("node %q was deleted", l.name("a")))
	l.gone("p")
	l.awaitEvent("q", "the volume is detached by force at ")
	l.awaitReported("v", "b")
	l.forced("timeout")
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := l.messages("q", explain.FailedAttachVolume); anyContains(got, "never detached by force") {
		l.Errorf("the pod has an event that says that nothing happens by itself: %q", got)
	}
}

func eventAttachFailed(l *lab) {
	const refusal = "rpc error: code = DeadlineExceeded desc = timed out"
	l.readyNode("a", "b")
	l.volume("v")
	l.attacher.set(func() { l.attacher.refusal = refusal })
	l.pod("p", "a", "v")
	l.awaitPodEvent("p", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), refusal))
	l.pod("q", "b", "v")
	l.awaitEvent("q", fmt.Sprintf("it may be attached to node %q, because an attach", l.name("a")), refusal)
	l.gone("p")
	l.attacher.set(func() { l.attacher.refusal = "" })
	l.awaitReported("v", "b")
}

func eventAttachUnanswered(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.attacher.set(func() { l.attacher.stalled = true })
	l.pod("p", "a", "v")
	l.await("attach begun", func() bool { return l.attachment("v", "a") != nil })
	l.pod("q", "b", "v")
	l.awaitEvent("q", fmt.Sprintf("it may be attached to node %q, because an attach", l.name("a")), "has had no answer yet")
	l.gone("p")
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitReported("v", "b")
}

// A VolumeAttachment is deleted under a pod that runs: the volume comes back at once, but
// the pod's mount is dead.
func eventDetachedInUse(l *lab) {
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	before := l.read("v", "a").UID
	l.must(client.IgnoreNotFound(l.Delete(l.ctx, l.read("v", "a"))))
	l.awaitWarnings(explain.VolumeDetachedInUse)
	l.await("attached again", func() bool {
		va := l.attachment("v", "a")
		return va != nil && va.UID != before && va.Status.Attached
	})
}

// awaitWarnings waits for a warning on pod p and on the claim.
func (l *lab) awaitWarnings(reason string) {
	l.Helper()
	for _, about := range []struct{ kind, name string }{{"Pod", "p"}, {"PersistentVolumeClaim", "v"}} {
		l.await("a warning on "+about.kind+" "+about.name, func() bool {
			for _, e := range l.events {
				if e.InvolvedObject.Kind == about.kind && e.InvolvedObject.Name == about.name && e.Reason == reason && e.Type == corev1.EventTypeWarning {
					return true
				}
			}
			return false
		})
	}
}

// The attacher says on the VolumeAttachment that the driver lists the volume at another node too.
func eventListedElsewhere(l *lab) {
	l.attachedOnA()
	now := time.Now()
	value := kube.Elsewhere{NodeID: "id-b", Node: l.name("b"), Since: now, Seen: now}.Encode()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, kube.PublishedElsewhereAnnotation, value)
	l.must(l.Patch(l.ctx, l.read("v", "a"), client.RawPatch(types.MergePatchType, patch)))
	l.awaitWarnings(explain.VolumePublishedElsewhere)
}
