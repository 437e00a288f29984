package attacher

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// recreate deletes a PersistentVolume, finalizers or not, and creates it again under its
// name for the volume of another handle.
func (w *world) recreate(volume, handle string, change ...func(*corev1.PersistentVolume)) {
	w.t.Helper()
	w.erase(volume)
	w.volume(volume, append([]func(*corev1.PersistentVolume){func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle }}, change...)...)
}

// erase deletes a PersistentVolume and takes its finalizers off.
func (w *world) erase(volume string) {
	w.t.Helper()
	must(w.t, w.client.CoreV1().PersistentVolumes().Delete(w.t.Context(), w.name(volume), metav1.DeleteOptions{}))
	w.patchPV(volume, `{"metadata":{"finalizers":null}}`)
}

// attachmentOf makes a VolumeAttachment for the volume of a handle, which the
// PersistentVolume has at that time.
func (w *world) attachmentOf(volume, handle, node string, change ...func(*storagev1.VolumeAttachment)) string {
	w.t.Helper()
	return w.attachment(volume, node, append([]func(*storagev1.VolumeAttachment){func(va *storagev1.VolumeAttachment) {
		va.Name = kube.AttachmentName(handle, w.driver.Name, w.name(node))
	}}, change...)...)
}

// calls are the calls that the driver received, with the volume that they were for.
func (w *world) calls() (calls []string) {
	for _, c := range w.driver.Calls() {
		calls = append(calls, c.Method+" "+c.Volume+" "+c.Node)
	}
	return calls
}

func (w *world) wantVolumeCalls(want ...string) {
	w.t.Helper()
	if got := w.calls(); !slices.Equal(got, want) {
		w.t.Errorf("calls %q, want %q", got, want)
	}
}

// S1, S5: a PersistentVolume that was recreated under its name for another volume does not describe what was published
// before.
func TestRecreatedPVIsAnotherVolume(t *testing.T) {
	w := newWorld(t)
	for _, node := range []string{"node-a", "node-b", "node-c"} {
		w.node(node)
	}
	w.volume("pv1")
	w.start()
	first, second := w.name("pv1"), w.name("second")
	old := w.attachment("pv1", "node-a")
	w.until(old, "attached", isAttached)
	w.recreate("pv1", second)

	// The new volume is free, whatever the old attachment is called.
	w.until(w.attachmentOf("pv1", second, "node-b"), "attached", isAttached)
	w.wantVolumeCalls("Publish "+first+" id-node-a", "Publish "+second+" id-node-b")

	// The old one is not, under whatever name.
	w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = first })
	moved := w.attachmentOf("pv2", first, "node-c")
	w.until(moved, "waiting", hasAttachError("still exists"))
	w.delete(old)
	w.until(moved, "attached", isAttached)
	w.until(old, "gone", isGone)
	w.wantVolumeCalls("Publish "+first+" id-node-a", "Publish "+second+" id-node-b", "Unpublish "+first+" id-node-a", "Publish "+first+" id-node-c")
}

// The volume is detached with the secret that it was attached with, although only its attachment still refers to that
// secret.
func TestVolumeWithoutPersistentVolumeIsDetached(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"recreated": func(w *world) { w.recreate("pv1", w.name("second")) },
		"gone":      func(w *world) { w.erase("pv1") },
		"no more ours": func(w *world) {
			w.recreate("pv1", "x", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other.example.com" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("node-a")
			w.secret("s1", map[string][]byte{"key": []byte("one")})
			w.volume("pv1", withSecret(w, "s1"))
			w.start()
			va := w.attachment("pv1", "node-a")
			w.until(va, "attached", isAttached)
			w.stop() // the next process knows what is recorded
			lose(w)
			w.start()
			w.delete(va)
			w.until(va, "gone", isGone)
			w.wantVolumeCalls("Publish "+w.name("pv1")+" id-node-a", "Unpublish "+w.name("pv1")+" id-node-a")
			for _, c := range w.driver.WaitCalls(2) {
				if c.Secrets["key"] != "one" {
					t.Errorf("%s with secrets %v", c.Method, c.Secrets)
				}
			}
		})
	}
}

// The name of an attachment identifies what another attacher published. If the name does not match the
// PersistentVolume, no call is sent and the status reports why; a PersistentVolume of the right volume ends the wait.
func TestAttachmentOfUnknownVolumeIsHeld(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	first, second := w.name("pv1"), w.name("second")
	w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = second })
	held := w.attachmentOf("pv1", first, "node-a", withFinalizer(w, "id-node-a"), isAttachedAlready)
	begun := w.attachmentOf("pv1", w.name("third"), "node-a")
	w.start()
	w.until(begun, "refused", hasAttachError("recreated for another volume"))
	w.delete(held)
	w.until(held, "held", hasDetachError("was not recorded"))
	w.wantVolumeCalls()
	w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = first })
	w.until(held, "gone", isGone)
	w.wantVolumeCalls("Unpublish " + first + " id-node-a")
}

// The identity is recorded in the very request that stores the finalizer, and where
// another attacher began without it.
func TestIdentityIsRecordedBeforeTheCall(t *testing.T) {
	for name, begun := range map[string]bool{"new": false, "begun by csi-attacher": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("node-a")
			w.secret("s1", nil)
			w.volume("pv1", withSecret(w, "s1"))
			var change []func(*storagev1.VolumeAttachment)
			if begun {
				change = append(change, withFinalizer(w, "id-node-a"))
			}
			va := w.attachment("pv1", "node-a", change...)
			w.driver.SetAnswer(failing("Publish", 1000, status.Error(codes.Internal, "not now")))
			w.start()
			stored := w.until(va, "failed", hasAttachError("not now"))
			for key, want := range map[string]string{
				kube.NodeIDAnnotation: "id-node-a", kube.PublishedHandleAnnotation: w.name("pv1"), kube.PublishSecretAnnotation: "default/" + w.name("s1"),
			} {
				if got := stored.Annotations[key]; got != want {
					t.Errorf("%s: %q, want %q", key, got, want)
				}
			}
		})
	}
}

// A volume is exclusive because of one of its PersistentVolumes. When that one is deleted the volume is shared, and the
// waiting attachment continues without a resync.
func TestVolumeBecomesSharedWhenPVIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = w.name("pv1") })
	w.start()
	w.until(w.attachment("pv1", "node-a"), "attached", isAttached)
	waits := w.attachment("pv1", "node-b")
	w.until(waits, "waiting", hasAttachError("still exists"))
	w.erase("pv2")
	w.until(waits, "attached", isAttached)
}

// A finalizer that is removed by force while the volume is attached is added again, also if it was removed before this
// process started: otherwise the detach would be lost.
func TestFinalizerOfAttachedVolumeComesBack(t *testing.T) {
	for name, before := range map[string]bool{"while attached": false, "before the start": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("node-a")
			w.volume("pv1")
			w.start()
			va := w.attachment("pv1", "node-a")
			w.until(va, "attached", isAttached)
			if before {
				w.stop()
			}
			w.patch(va, `{"metadata":{"finalizers":null}}`)
			if before {
				w.start()
			}
			w.until(va, "protected again", func(va *storagev1.VolumeAttachment) bool { return va != nil && len(va.Finalizers) == 1 })
			w.delete(va)
			w.until(va, "gone", isGone)
			w.wantCalls("Publish id-node-a", "Unpublish id-node-a")
		})
	}
}
