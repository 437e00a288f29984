package attachdetach

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// The cases of upstream's csi_attacher_test.go, operation_executor_test.go and
// nestedpendingoperations_test.go, by their names.

// attachOK: the attachment has exactly the name and spec that upstream gives it, plus belay's annotations.
func attachOK(name, driverName, handle string) scenario {
	return play("TestAttacherAttach/"+name, func(l *lab) {
		l.readyNode("a")
		handle := handle + l.prefix // the API server is everybody's
		l.pvOf("v", csiPV(driverName, handle))
		l.pod("p", "a", "v")
		l.awaitAt(driverName, handle, "a")
		l.mu.Lock()
		defer l.mu.Unlock()
		va := l.at(driverName, handle, "a")
		pv := l.name("v")
		want := storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: l.name("a"),
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		}
		if va.Spec.Attacher != want.Attacher || va.Spec.NodeName != want.NodeName || va.Spec.Source.InlineVolumeSpec != nil ||
			va.Spec.Source.PersistentVolumeName == nil || *va.Spec.Source.PersistentVolumeName != pv {
			l.Errorf("spec %+v, want %+v", va.Spec, want)
		}
		if len(va.Labels) != 0 || len(va.OwnerReferences) != 0 {
			l.Errorf("labels %v and owners %v, want none", va.Labels, va.OwnerReferences)
		}
		for key := range va.Annotations {
			if !strings.HasPrefix(key, "belay.dev/") {
				l.Errorf("annotation %s, which is not belay's", key)
			}
		}
		for _, v := range l.nodes[l.name("a")].Status.VolumesAttached {
			if v.DevicePath != "" {
				l.Errorf("device path %q, want none", v.DevicePath)
			}
		}
	})
}

// mismatch: another attachment that is confirmed, of the volume on another node or of
// another volume, confirms nothing for this volume on this node.
func mismatch(name string, attachOther func(l *lab)) scenario {
	return play("TestAttacherAttach/"+name, func(l *lab) {
		l.readyNode("a", "b")
		l.volume("v", corev1.ReadWriteMany)
		ours := kube.AttachmentName(l.name("v"), driver, l.name("a"))
		l.attacher.set(func() {
			l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) { return va.Name == ours, "" }
		})
		l.pod("p", "a", "v")
		l.await("attach begun", func() bool { return l.vas[ours] != nil })
		attachOther(l)       // returns when the controller has seen and reported it
		l.pod("r", "a", "v") // the controller decides about v again
		l.settled("b")
		if l.onServer("v", "a") {
			l.Error("S9: reported by another attachment's confirmation")
		}
	})
}

func attachOtherVolume(l *lab) {
	l.volume("w", corev1.ReadWriteMany)
	l.pod("q", "a", "w")
	l.awaitReported("w", "a")
}

func attachSameHandleOfOtherDriver(l *lab) {
	l.pvOf("w", csiPV("driver01", l.name("v")))
	l.pod("q", "a", "w")
	l.awaitAt("driver01", l.name("v"), "a")
}

func attachToOtherNode(l *lab) {
	l.pod("q", "b", "v")
	l.awaitReported("v", "b")
}

func attacherError(name string) scenario {
	return play(name, func(l *lab) {
		const refusal = "attacher error"
		l.readyNode("a")
		l.volume("v")
		l.attacher.set(func() { l.attacher.refusal = refusal })
		l.pod("p", "a", "v")
		l.awaitPodEvent("p", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), refusal))
		if l.onServer("v", "a") {
			l.Error("S9: reported though the attach failed")
		}
		l.attacher.set(func() { l.attacher.refusal = "" })
		l.awaitReported("v", "a")
		l.awaitPodEvent("p", explain.SuccessfulAttachVolume, explain.AttachSucceeded(l.name("v")))
	})
}

// volumeSource: a CSI volume inside a pod is ephemeral and never attached.
func volumeSource(name string) scenario {
	return play(name, func(l *lab) {
		l.readyNode("a")
		l.podOf("p", "a", corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}})
		l.settled("a")
		l.lived("a made", "a attached")
	})
}

// missingSpec: the volume is unknown.
func missingSpec(name string) scenario {
	return play(name, func(l *lab) {
		l.readyNode("a")
		l.podOf("p", "a", corev1.Volume{VolumeSource: ofClaim("no-such-claim")})
		l.claim("unborn") // bound to a PersistentVolume that is not there
		l.pod("q", "a", "unborn")
		l.settled("a")
		l.lived("a made", "a attached")
	})
}

func csiDriver(name, driverName string, attachRequired *bool, exists, attaches bool) scenario {
	return prepared("TestAttacherWithCSIDriver/"+name, func(l *lab) {
		if exists {
			l.driverObject(driverName, attachRequired)
		}
	}, func(l *lab) {
		driverName := l.name(driverName)
		l.readyNode("a")
		l.pvOf("v", csiPV(driverName, l.name("v")))
		l.pod("p", "a", "v")
		if attaches {
			l.awaitAt(driverName, l.name("v"), "a")
			return
		}
		l.settled("a")
		l.lived("a made", "a attached")
	})
}

// areAttached starts with attachments that are confirmed or not: only confirmed ones are reported.
func areAttached(name string, confirmed ...bool) scenario {
	volume := func(i int) string { return fmt.Sprintf("vol%d", i) }
	return prepared(name, func(l *lab) {
		l.readyNode("a")
		var names []string
		silent := map[string]bool{}
		for i, attached := range confirmed {
			l.volume(volume(i))
			names = append(names, volume(i))
			silent[kube.AttachmentName(l.name(volume(i)), driver, l.name("a"))] = !attached
		}
		l.attacher.set(func() {
			l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) { return silent[va.Name], "" }
		})
		for i, attached := range confirmed {
			va := l.makeAttachment(driver, l.name(volume(i)), "a", l.name(volume(i)))
			if attached {
				l.attached(va)
			}
			l.lists("a", l.unique(volume(0))) // as if it were
		}
		l.pod("p", "a", names...)
		if strings.Contains(name, "non-attable") || strings.Contains(name, "Inline") {
			l.podOf("q", "a", corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}})
		}
	}, func(l *lab) {
		asConfirmed := func() bool {
			for i, attached := range confirmed {
				if l.isReported(volume(i), "a") != attached {
					return false
				}
			}
			return true
		}
		l.await("just the confirmed ones are reported", asConfirmed)
		// It may have been so before the controller began: it must be so afterwards.
		l.settled("a")
		l.mu.Lock()
		defer l.mu.Unlock()
		if n := len(l.vas) - 1; !asConfirmed() || n != len(confirmed) { // one is the mark's
			l.Errorf("%d attachments, want %d, and only the confirmed ones reported:\n%s", n, len(confirmed), l.describe())
		}
	})
}

func detachOK(l *lab) {
	l.attachedOnA()
	l.gone("p")
	l.awaitDetached("v", "a")
	l.lived("a made", "a attached", "a deleting", "a gone")
}

// detachNotFound: the object is gone when the delete arrives.
func detachNotFound(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	gone := sync.OnceFunc(func() {
		va := l.read("v", "a")
		l.must(l.Delete(l.background(), va))
		for l.read("v", "a") != nil { // the attacher takes its finalizer off
		}
	})
	deletes := l.tally()
	l.breaks(func(r *http.Request) error {
		if isDetach(r) {
			gone()
			deletes.add()
		}
		return nil
	})
	l.gone("p")
	l.await("the controller deletes what is gone", func() bool { return deletes.count() > 0 })
	l.awaitDetached("v", "a")
	l.breaks(nil)
	l.pod("q", "b", "v")
	l.awaitReported("v", "b")
}

func detachAPIError(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	const refusals = 3
	refused := l.tally()
	l.breaks(func(r *http.Request) error {
		if isDetach(r) && refused.add() <= refusals {
			return apierrors.NewForbidden(storagev1.Resource("volumeattachments"), "", errors.New("mock error"))
		}
		return nil
	})
	l.pod("q", "b", "v")
	l.gone("p")
	l.await("refused three times and tried again", func() bool { return refused.count() > refusals })
	l.awaitReported("v", "b")
	l.lived("a made", "a attached", "a deleting", "a gone", "b made", "b attached") // S1: in this order
}

// Operations at once.

func attachOnceForTwoPods(modes ...corev1.PersistentVolumeAccessMode) func(*lab) {
	return func(l *lab) {
		l.readyNode("a")
		l.pod("p", "a", "v")
		l.pod("q", "a", "v")
		l.settled("a") // the controller knows both
		attaches := l.counts(isAttach)
		l.attacher.set(func() { l.attacher.stalled = true })
		l.volume("v", modes...)
		l.await("attach begun", func() bool { return l.attachment("v", "a") != nil })
		l.attacher.set(func() { l.attacher.stalled = false })
		l.awaitReported("v", "a")
		for _, pod := range []string{"p", "q"} {
			l.awaitPodEvent(pod, explain.SuccessfulAttachVolume, explain.AttachSucceeded(l.name("v")))
		}
		if n := attaches.count(); n != 1 {
			l.Errorf("%d attaches for two pods of one node, want 1", n)
		}
	}
}

func attachSerially(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	attaches := l.counts(isAttach)
	l.attacher.set(func() { l.attacher.stalled = true })
	l.pod("p", "a", "v")
	l.await("attach begun", func() bool { return l.attachment("v", "a") != nil })
	l.pod("q", "b", "v")
	l.refused("q", "v", "b")
	if n := attaches.count(); n != 1 {
		l.Errorf("S1, S4: %d attaches of an exclusive volume at once", n)
	}
}

func detachOnce(modes ...corev1.PersistentVolumeAccessMode) func(*lab) {
	return func(l *lab) {
		l.readyNode("a", "b")
		l.volume("v", modes...)
		l.pod("p", "a", "v")
		l.pod("q", "a", "v")
		l.awaitReported("v", "a")
		deletes := l.counts(isDetach)
		l.attacher.set(func() { l.attacher.stalled = true })
		l.gone("p")
		l.gone("q")
		l.await("detach begun", func() bool { return l.attachment("v", "a").DeletionTimestamp != nil })
		l.settledQuietly() // the volume has been decided again
		l.attacher.set(func() { l.attacher.stalled = false })
		l.awaitDetached("v", "a")
		if n := deletes.count(); n != 1 {
			l.Errorf("%d detaches, want 1", n)
		}
	}
}

func detachInParallel(l *lab) {
	l.readyNode("a", "b")
	l.volume("v", corev1.ReadWriteMany)
	l.pod("p", "a", "v")
	l.pod("q", "b", "v")
	l.awaitReported("v", "a")
	l.awaitReported("v", "b")
	l.attacher.set(func() { l.attacher.stalled = true })
	l.gone("p")
	l.gone("q")
	l.await("both detaches under way at once", func() bool {
		return l.attachment("v", "a").DeletionTimestamp != nil && l.attachment("v", "b").DeletionTimestamp != nil
	})
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitDetached("v", "a")
	l.awaitDetached("v", "b")
}

// issue88355: a hanging operation at one node of a shared volume does not block the other nodes.
func issue88355(l *lab) {
	l.readyNode("a", "b", "c")
	l.volume("v", corev1.ReadWriteMany)
	l.pod("p", "a", "v")
	l.pod("q", "b", "v")
	l.awaitReported("v", "a")
	l.awaitReported("v", "b")
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) { return va.Spec.NodeName == l.name("a"), "" }
	})
	l.gone("p")
	l.await("one detach hangs", func() bool { return l.attachment("v", "a").DeletionTimestamp != nil })
	l.gone("q")
	l.awaitDetached("v", "b")
	l.pod("r", "c", "v")
	l.awaitReported("v", "c")
}

// anotherOperation: the back-off of a failing detach does not delay the report for a pod that came back.
func anotherOperation(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	failed := l.tally()
	l.breaks(func(r *http.Request) error {
		if isDetach(r) {
			failed.add()
			return errors.New("no way to the API server")
		}
		return nil
	})
	l.gone("p")
	l.await("the detach is being tried again", func() bool { return failed.count() > 1 && !l.isReported("v", "a") })
	l.settled("a")
	l.pod("q", "a", "v")
	l.awaitReported("v", "a")
	l.kept("v", "a", uid)
	before := failed.count()
	l.settled("a")
	if n := failed.count(); n != before {
		l.Errorf("S2: %d more detaches of a volume that is wanted again", n-before)
	}
}

func csiCases() []scenario {
	rwx := corev1.ReadWriteMany
	return []scenario{
		attachOK("test ok 1", "testdriver-01", "testvol-01"),
		attachOK("test ok 2", "driver02", "vol02"),
		mismatch("mismatch vol", attachOtherVolume),
		mismatch("mismatch driver", attachSameHandleOfOtherDriver),
		mismatch("mismatch node", attachToOtherNode),
		attacherError("TestAttacherAttach/attacher error"),
		volumeSource("TestAttacherAttach/test with volume source"),
		missingSpec("TestAttacherAttach/missing spec"),
		play("TestAttacherAttachWithInline/test ok 1 with PV", (*lab).attachedOnA),
		volumeSource("TestAttacherAttachWithInline/test failure, attach with volSrc"),
		attacherError("TestAttacherAttachWithInline/attacher error"),
		missingSpec("TestAttacherAttachWithInline/missing spec"),
		csiDriver("CSIDriver not attachable", "not-attachable", new(false), true, false),
		csiDriver("CSIDriver is attachable", "attachable", new(true), true, true),
		csiDriver("CSIDriver.AttachRequired not set  -> failure", "nil", nil, true, true),
		csiDriver("CSIDriver does not exist not set  -> failure", "unknown", nil, false, true),
		areAttached("TestAttacherVolumesAreAttached/attach and detach", true, true, false, false, true),
		areAttached("TestAttacherVolumesAreAttached/all detached", false, false, false),
		areAttached("TestAttacherVolumesAreAttached/all attached", true, true),
		areAttached("TestAttacherVolumesAreAttached/include non-attable", true, false),
		areAttached("TestAttacherVolumesAreAttachedWithInline/attach and detach with volume sources", true, true, true),
		play("TestAttacherDetach/normal test", detachOK),
		play("TestAttacherDetach/normal test 2", detachOK),
		play("TestAttacherDetach/object not found", detachNotFound),
		play("TestAttacherDetach/API error", detachAPIError),
		play("TestOperationExecutor_AttachSingleNodeVolumeConcurrentlyToSameNode", attachOnceForTwoPods()),
		play("TestOperationExecutor_AttachMultiNodeVolumeConcurrentlyToSameNode", attachOnceForTwoPods(rwx)),
		play("TestOperationExecutor_AttachSingleNodeVolumeConcurrentlyToDifferentNodes", attachSerially),
		play("TestOperationExecutor_AttachMultiNodeVolumeConcurrentlyToDifferentNodes", readWriteMany),
		play("TestOperationExecutor_DetachSingleNodeVolumeConcurrentlyFromSameNode", detachOnce()),
		play("TestOperationExecutor_DetachMultiNodeVolumeConcurrentlyFromSameNode", detachOnce(rwx)),
		play("TestOperationExecutor_DetachMultiNodeVolumeConcurrentlyFromDifferentNodes", detachInParallel),
		play("Test_NestedPendingOperations_Positive_Issue_88355", issue88355),
		play("Test_NestedPendingOperations_Negative_SecondThirdOpWithDifferentNames", anotherOperation),
	}
}
