package attacher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// S1: an attachment whose PersistentVolume was gone before the start still holds the volume, against another
// PersistentVolume of the same handle.
func TestOrphanFromBeforeTheStart(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	w.node("node-b")
	w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = w.name("pv1") })
	held := w.attachment("pv1", "node-a", func(va *storagev1.VolumeAttachment) {
		va.Finalizers = []string{kube.AttacherFinalizer(w.driver.Name)}
		va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-node-a"}
		va.Status.Attached = true
	})
	w.start()
	waits := w.attachmentOf("pv2", w.name("pv1"), "node-b")
	w.until(waits, "waiting", hasAttachError("still exists"))
	w.wantCalls()
	w.delete(held)
	w.until(waits, "attached", isAttached)
	if got := w.driver.Made(); slices.Index(got, "Unpublish id-node-a") != 0 {
		t.Errorf("calls: %v, want the unpublish of node-a first", got)
	}
}

// When a person deletes an orphan, the attachment that waits for it continues, although only the attacher's memory
// identifies the volume that the orphan was for.
func TestDeletedOrphanWakesItsVolume(t *testing.T) {
	w := newWorld(t)
	w.node("node-b")
	w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = w.name("pv1") })
	held := w.attachment("pv1", "node-a", withFinalizer(w, ""), isAttachedAlready)
	w.start()
	waits := w.attachmentOf("pv2", w.name("pv1"), "node-b")
	w.until(waits, "waiting", hasAttachError("still exists"))
	w.delete(held)
	w.until(held, "held", hasDetachError("csinode"))
	w.patch(held, `{"metadata":{"finalizers":null}}`)
	w.until(waits, "attached", isAttached)
	w.wantCalls("Publish id-node-b")
}

// Before the cache of PersistentVolumes is filled, none is missing: or each that comes would be compared with all
// attachments there are. Once it is, those are found whose event came before.
func TestOrphansAreFoundOnceVolumesAreSynced(t *testing.T) {
	w := newWorld(t)
	w.volume("pv1")
	a, err := New(Config{Client: w.client, Driver: w.driver.Name, Controller: w.controller(), WorkerThreads: 1})
	must(t, err)
	for _, volume := range []string{"pv1", "gone"} {
		name := w.name(volume)
		va := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: volume},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: w.driver.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
			Status:     storagev1.VolumeAttachmentStatus{Attached: true},
		}
		must(t, a.objects.attachmentInformer.GetStore().Add(va))
		a.attachmentChanged(nil, va)
	}
	if found := orphansOf(a); len(found) != 0 {
		t.Errorf("orphans before anything is known: %v", found)
	}
	var running sync.WaitGroup
	running.Go(func() { a.objects.volumeInformer.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	if !cache.WaitForCacheSync(t.Context().Done(), a.objects.volumeInformer.HasSynced) {
		t.Fatal("the cache was not filled")
	}
	a.enqueueAll()
	found := orphansOf(a)
	if _, ok := found["gone"]; !ok || len(found) != 1 {
		t.Errorf("orphans: %v, want the one", found)
	}
}

// orphansOf are the orphans that an attacher knows now: its informers change them.
func orphansOf(a *Attacher) map[string]string {
	a.objects.orphans.mu.Lock()
	defer a.objects.orphans.mu.Unlock()
	return maps.Clone(a.objects.orphans.handles)
}

// A settled attachment of another node, which nothing wakes at the start, identifies the volume of an orphan: its
// status does not ask a person for a handle that is recorded.
func TestSettledAttachmentIdentifiesAnOrphan(t *testing.T) {
	w := newWorld(t)
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "other" })
	w.attachmentOf("pv1", w.name("pv1"), "node-b", withFinalizer(w, "id-node-b"), isAttachedAlready, func(va *storagev1.VolumeAttachment) {
		va.Annotations[kube.PublishedHandleAnnotation] = w.name("pv1")
	})
	orphan := w.attachmentOf("pv1", w.name("pv1"), "node-a")
	w.start()
	w.until(orphan, "waiting", hasAttachError("recreated for another volume"))
	if va := w.get(orphan); strings.Contains(va.Status.AttachError.Message, "not recorded") {
		t.Errorf("%s, although another VolumeAttachment records the handle", va.Status.AttachError.Message)
	}
	w.wantCalls()
}

// Mostly a VolumeAttachment and its PersistentVolume were just created, and the events come in any order: the one that comes first is compared with no
// other volume, of which a cluster may have 50,000. Its PersistentVolume wakes it.
func TestAttachmentSeenBeforeItsVolume(t *testing.T) {
	allocations := func(volumes int) (found float64) {
		inBubble(t, 10, func(b *bubble) {
			b.node("n", "id-n")
			for i := range volumes {
				b.volume(fmt.Sprint("other", i), corev1.ReadWriteOnce)
			}
			name := kube.AttachmentName("late", bubbleDriver, "n")
			b.api.put("volumeattachments", fixture.Attachment(name, bubbleDriver, "n", "late"))
			b.pass(time.Second)
			found = testing.AllocsPerRun(1, func() { b.attacher.objects.searchVolumeOf(name) })
			if searched := b.attacher.objects.orphans.searched[name]; searched {
				t.Errorf("it was compared with %d volumes", volumes)
			}
			b.volume("late", corev1.ReadWriteOnce)
			b.within(time.Second, "attached", func() bool { va, ok := b.attacher.objects.attachments.Get(name); return ok && va.Status.Attached })
		})
		return found
	}
	if few, many := allocations(10), allocations(500); many > few {
		t.Errorf("a look at it allocates %.0f times with 10 other volumes, %.0f with 500", few, many)
	}
}
