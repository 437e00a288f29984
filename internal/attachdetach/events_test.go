package attachdetach

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// heard gives the events of a reason about an object, each as often as it was sent;
// hold l.mu.
func (l *lab) heard(kind, name, reason string) []string {
	var found []string
	for _, e := range l.events {
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason && e.Source.Component == EventComponent {
			found = append(found, slices.Repeat([]string{e.Message}, max(1, int(e.Count)))...)
		}
	}
	return found
}

func (l *lab) awaitHeard(kind, name, reason, message string) {
	l.Helper()
	l.await(fmt.Sprintf("%s %s hears once of %s %q", kind, name, reason, message), func() bool {
		heard := l.heard(kind, name, reason)
		return len(heard) == 1 && heard[0] == message
	})
}

// detachError is an attacher whose driver refuses to detach.
func (l *lab) detachError(volume, node, message string) {
	l.Helper()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"attached": true, "detachError": map[string]any{"message": message}}})
	l.must(err)
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(l.name(volume), driver, l.name(node))}}
	l.must(l.Status().Patch(l.ctx, va, client.RawPatch(types.MergePatchType, body)))
}

func TestClaimHearsOfDetach(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")

	l.attacher.set(func() { l.attacher.stalled = true })
	l.gone("p")
	node := attachment.NodeName(l.name("a"))
	l.awaitHeard("PersistentVolumeClaim", "v", explain.DetachingVolume, explain.DetachStarted(l.name("v"), node, nil))
	for _, message := range []string{"busy", "busy", "still busy"} { // a retry is no news
		l.detachError("v", "a", message)
	}
	l.await("both failures are told once", func() bool {
		heard := l.heard("PersistentVolumeClaim", "v", explain.FailedDetachVolume)
		slices.Sort(heard)
		return slices.Equal(heard, []string{
			explain.DetachFailed(l.name("v"), node, "busy"), explain.DetachFailed(l.name("v"), node, "still busy"),
		})
	})
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitDetached("v", "a")
	l.awaitHeard("PersistentVolumeClaim", "v", explain.SuccessfulDetachVolume, explain.DetachSucceeded(l.name("v"), node))
}

func TestVolumeWithoutAClaimHearsOfDetach(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: "v"}}
	l.must(l.Patch(l.ctx, pvc, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))))
	l.must(client.IgnoreNotFound(l.Delete(l.ctx, pvc)))
	l.use("a")
	node := attachment.NodeName(l.name("a"))
	l.awaitHeard("PersistentVolume", l.name("v"), explain.SuccessfulDetachVolume, explain.DetachSucceeded(l.name("v"), node))
}

func TestClaimHearsOfForcedDetach(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.taint("a")
	node := attachment.NodeName(l.name("a"))
	l.awaitHeard("PersistentVolumeClaim", "v", explain.DetachingVolume,
		explain.DetachStarted(l.name("v"), node, attachment.OutOfServiceTaint{}))
	l.awaitDetached("v", "a")
}

// TestEventsCarryTheReason that logs and metrics have too.
func TestEventsCarryTheReason(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.pod("q", "b", "v")
	l.await("the second pod is told why", func() bool {
		for _, e := range l.events {
			if e.InvolvedObject.Name == "q" && e.Reason == explain.FailedAttachVolume {
				return e.Annotations[kube.ReasonAnnotation] == string(attachment.OtherWriterAttached)
			}
		}
		return false
	})
}
