package attacher

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// persistentVolume makes a PersistentVolume whose name is not its handle.
func (b *bubble) persistentVolume(name, handle string, change ...func(*corev1.PersistentVolume)) {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: bubbleDriver, VolumeHandle: handle},
			},
		},
	}
	for _, f := range change {
		f(pv)
	}
	b.api.put("persistentvolumes", pv)
}

// endVolume removes a PersistentVolume, whatever its finalizers.
func (b *bubble) endVolume(name string) {
	stored, _ := b.api.get("persistentvolumes", name)
	pv := stored.(*corev1.PersistentVolume).DeepCopy()
	pv.Finalizers, pv.DeletionTimestamp = nil, new(metav1.Now())
	b.api.put("persistentvolumes", pv)
}

func named(pv string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.Spec.Source.PersistentVolumeName = &pv }
}

// S1: before belay-attacher starts, csi-attacher attached volumes to node-a through PersistentVolumes that are gone by
// now, and other PersistentVolumes with the same handles are wanted at node-b. The names of the first VolumeAttachments
// identify their volumes (TestOrphanFromBeforeTheStart: nothing is attached to node-b). But the orphans are looked up
// one by one, while the other attachments are already being processed.
func TestOrphansAreKnownBeforeTheFirstAttach(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"csi-attacher's --kube-api-qps": func(c *Config) { c.QPS, c.Burst = 5, 10 },
		"no limit":                      func(*Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.slow(5 * time.Millisecond)
				const volumes = 100
				for i := range volumes {
					v := fmt.Sprint("v", i)
					b.attach(v, "node-a", worked, attached, named("gone-"+v))
					b.attach(v, "node-b")
				}
				defer b.start(change)()
				b.pass(2 * time.Minute)
				twice := 0
				for i := range volumes {
					if slices.Contains(b.received(fmt.Sprint("v", i)), "Publish id-node-b") {
						twice++
					}
				}
				if twice > 0 {
					t.Errorf("S1: %d of %d exclusive volumes were published to node-b while attached to node-a", twice, volumes)
				}
			})
		})
	}
}

// S1, S5: a call is recorded under the volume that the attachment was for when it was first observed. A
// VolumeAttachment whose name is not computed (other controllers create such names) is refused because its Secret is
// missing, its PersistentVolume is recreated for another volume, and that one is published: the record of this call
// cannot be found once the finalizer has been removed by force.
func TestCallIsRememberedForItsVolume(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.answers(func(ctx context.Context, c call) error {
			if c.Node == "id-node-a" && c.Method == "Publish" {
				return lasting(ctx, 10*time.Second)
			}
			return nil
		})
		b.persistentVolume("pv", "first", func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "missing"}
		})
		b.node("node-a", "id-node-a")
		b.node("node-b", "id-node-b")
		pv := "pv"
		va := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "by-hand"},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: bubbleDriver, NodeName: "node-a", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		}
		b.api.put(resourceAttachments, va)
		b.pass(100 * time.Millisecond) // refused: there is no such Secret
		b.endVolume("pv")
		b.persistentVolume("pv", "second")
		b.pass(5 * time.Second)
		if got := b.received("second"); !slices.Equal(got, []string{"Publish id-node-a"}) {
			t.Fatalf("calls for the second volume: %q", got)
		}
		// While the call is in flight, a person removes the VolumeAttachment by force.
		stored, _ := b.api.get(resourceAttachments, "by-hand")
		gone := stored.(*storagev1.VolumeAttachment).DeepCopy()
		gone.Finalizers, gone.DeletionTimestamp = nil, new(metav1.Now())
		b.api.put(resourceAttachments, gone)
		b.attach("second", "node-b", named("pv"))
		b.pass(time.Minute)
		want := []string{"Publish id-node-a", "Unpublish id-node-a", "Publish id-node-b"}
		if got := b.received("second"); !slices.Equal(got, want) {
			t.Errorf("S1: calls for the second volume %q, want %q", got, want)
		}
		if got := b.received("first"); len(got) > 0 {
			t.Errorf("S5: calls for the first volume, which was never published: %q", got)
		}
	})
}

// S1: a publish to node-b failed halfway (INTERNAL), the driver lists the volume at node-x, for which no attachment
// exists, and it is unpublished from there (ADR 10, Abandoned). One record per attachment holds one call: that of
// node-x overwrites that of node-b. If the VolumeAttachment is removed by force meanwhile, node-b is forgotten.
func TestUnpublishElsewhereForgetsThePublish(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.answers(func(ctx context.Context, c call) error {
			switch c.Method + " " + c.Node {
			case "Publish id-node-b":
				return status.Error(codes.Internal, "attached, but the device did not show up")
			case "Unpublish id-node-x":
				return lasting(ctx, 10*time.Second)
			}
			return nil
		})
		b.attach("v", "node-b")
		b.pass(100 * time.Millisecond)
		va := b.attachment("v", "node-b")
		b.attacher.recordDrift(publication.ExpectedAttachment{Attachment: publication.Attachment{UID: string(va.UID), Name: va.Name, Node: "node-b"}},
			publication.Abandoned, "id-node-x", time.Now())
		b.pass(5 * time.Second)
		if got := b.received("v"); !slices.Equal(got, []string{"Publish id-node-b", "Unpublish id-node-x"}) {
			t.Fatalf("calls %q", got)
		}
		b.end("v", "node-b")
		b.attach("v", "node-c")
		b.pass(time.Minute)
		want := []string{"Publish id-node-b", "Unpublish id-node-x", "Unpublish id-node-b", "Publish id-node-c"}
		if got := b.received("v"); !slices.Equal(got, want) {
			t.Errorf("S1: calls %q, want %q: node-b may still have the volume", got, want)
		}
	})
}

// S1, S5: the content of annotations outranks better evidence. The name of a VolumeAttachment is a digest of its volume
// and its node, its PersistentVolume exists and agrees, and this very process has published the volume. Even so, an
// edited annotation (every CSI sidecar in the cluster may patch every VolumeAttachment) determines what is unpublished.
// csi-attacher sends the call for the PersistentVolume's handle and for the CSINode's ID.
func TestEditedAnnotations(t *testing.T) {
	for name, edit := range map[string]func(b *bubble){
		"handle": func(b *bubble) { b.annotate("v", "node", kube.PublishedHandleAnnotation, "other") },
		"node":   func(b *bubble) { b.annotate("v", "node", kube.NodeIDAnnotation, "id-another") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.attach("v", "node")
				b.attach("other", "node")
				b.within(time.Second, "attached", func() bool { return b.isAttached("v", "node") && b.isAttached("other", "node") })
				edit(b)
				b.pass(time.Second)
				b.detach("v", "node")
				b.pass(time.Minute)
				if got, want := b.received("other"), []string{"Publish id-node"}; !slices.Equal(got, want) {
					t.Errorf("S5: calls for a volume in use %q, want %q", got, want)
				}
				// Holding it and reporting that would be as good.
				if got := b.received("v"); b.isGone("v", "node") && !slices.Contains(got, "Unpublish id-node") {
					t.Errorf("S5: the finalizer is off after the calls %q", got)
				}
			})
		})
	}
}

// Liveness, "no volume that hangs delays another": after one RESOURCE_EXHAUSTED for a node, or one ABORTED for a shared
// volume, and one call that hangs, everything else for that node (or that volume) waits for the hanging call, for
// --timeout each time. csi-attacher attaches the others immediately.
func TestHangingProbeBlocksOthers(t *testing.T) {
	t.Run("node", func(t *testing.T) {
		inBubble(t, 100, func(b *bubble) {
			b.answers(func(ctx context.Context, c call) error {
				switch {
				case c.Volume == "refused":
					return errFull
				case strings.HasPrefix(c.Volume, "hangs"):
					return unanswered(ctx)
				}
				return nil
			})
			b.attach("refused", "node")
			b.pass(time.Millisecond)
			for i := range 4 {
				b.attach(fmt.Sprint("hangs", i), "node")
			}
			b.pass(2 * time.Second) // one that hangs was let through
			b.attach("healthy", "node")
			b.attach("healthy", "other")
			// One call starts per second, and which of those that wait is left to chance. At worst, all that hang go first, each
			// once, and so do two retries of the refused volume. A call that hangs ends only after 15 s.
			b.within(6*time.Second, "a healthy volume is attached to the node", func() bool { return b.isAttached("healthy", "node") })
		})
	})
	t.Run("shared volume", func(t *testing.T) {
		inBubble(t, 100, func(b *bubble) {
			first := true // under b.mu
			b.answers(func(ctx context.Context, c call) error {
				if c.Node != "id-dead" {
					return nil
				}
				b.mu.Lock()
				aborted := first
				first = false
				b.mu.Unlock()
				if aborted {
					return status.Error(codes.Aborted, "an operation for the node is pending")
				}
				return unanswered(ctx)
			})
			b.volume("shared", corev1.ReadWriteMany)
			b.attach("shared", "leaves")
			b.within(time.Second, "attached", func() bool { return b.isAttached("shared", "leaves") })
			b.attach("shared", "dead")
			b.pass(3 * time.Second) // aborted once, hangs now
			b.attach("shared", "node")
			b.detach("shared", "leaves")
			b.within(5*time.Second, "attached to a healthy node", func() bool { return b.isAttached("shared", "node") })
			if !b.isGone("shared", "leaves") {
				t.Error("the detach from a healthy node waits too")
			}
		})
	})
}

// The finalizers are written side by side: when the PersistentVolume is deleted just before, the API server refuses its
// finalizer (422) and stores that of the VolumeAttachment. Nothing was ever called, and yet the VolumeAttachment can go only
// once the driver confirms an unpublish, of a volume that it has deleted. csi-attacher writes the PersistentVolume's
// finalizer first, and there such a VolumeAttachment is gone as soon as it is deleted.
func TestRefusedVolumeFinalizerLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) {
		return nil, status.Error(codes.NotFound, "no such volume") // the provisioner has deleted it
	})
	w.node("node1")
	w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{"example.com/provisioner"} })
	var once sync.Once
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/persistentvolumes/") {
				once.Do(func() {
					if err := w.client.CoreV1().PersistentVolumes().Delete(t.Context(), w.name("pv1"), metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			return next.RoundTrip(r)
		})
	}))
	va := w.attachment("pv1", "node1")
	w.until(va, "refused", hasAttachError("marked for deletion"))
	w.patchPV("pv1", `{"metadata":{"finalizers":null}}`)
	w.delete(va)
	w.until(va, "gone", isGone)
	w.wantCalls()
}

// Waits are recorded by key. When the PersistentVolume goes, an attachment without any record gets another key, and the
// old record is never removed, not even when the attachment goes: the gauge that operators are asked to alert on grows
// until the process ends. The record of a refused attempt stays in the ledger in the same way.
func TestNotesOfAnotherKeyStay(t *testing.T) {
	arrange := map[string]func(b *bubble){
		"gauge": func(b *bubble) {
			b.api.put("csinodes", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node"}}) // the driver is not there yet
			b.volume("v")
		},
		"ledger": func(b *bubble) {
			b.persistentVolume("v", "v", func(pv *corev1.PersistentVolume) {
				pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "missing"}
			})
		},
	}
	for name, arrange := range arrange {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				registry := prometheus.NewRegistry()
				defer b.start(func(c *Config) { c.Metrics = telemetry.NewAttacher(registry) })()
				arrange(b)
				b.attach("v", "node")
				b.pass(10 * time.Second)
				b.endVolume("v")
				b.pass(10 * time.Minute)
				b.end("v", "node")
				b.pass(time.Hour)
				families, err := registry.Gather()
				must(t, err)
				for _, family := range families {
					for _, m := range family.GetMetric() {
						if v := m.GetGauge().GetValue(); strings.Contains(family.GetName(), "blocked") && v != 0 {
							t.Errorf("an hour after the last VolumeAttachment is gone: %s%v = %v", family.GetName(), m.GetLabel(), v)
						}
					}
				}
				if n := len(b.attacher.calls.byUID); n != 0 {
					t.Errorf("%d records are kept of attachments that are gone, and of which nothing was sent", n)
				}
			})
		})
	}
}

// Many PersistentVolumes are deleted at the same time (with their namespace) while each write takes a second (a
// webhook, a busy API server): csi-attacher releases ten at a time (--worker-threads), belay-attacher one. A write that
// hangs blocks all of them.
func TestPersistentVolumesAreReleasedSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		defer b.start()()
		b.pass(time.Second)
		b.slow(time.Second)
		const volumes = 60
		for i := range volumes {
			b.persistentVolume(fmt.Sprint("v", i), fmt.Sprint("v", i), func(pv *corev1.PersistentVolume) {
				pv.Finalizers, pv.DeletionTimestamp = []string{kube.AttacherFinalizer(bubbleDriver)}, new(metav1.Now())
			})
		}
		b.pass(10 * time.Second)
		left := 0
		for i := range volumes {
			if _, ok := b.api.get("persistentvolumes", fmt.Sprint("v", i)); ok {
				left++
			}
		}
		if left > 0 {
			t.Errorf("%d of %d PersistentVolumes are still there after 10 s of writes that take 1 s", left, volumes)
		}
	})
}

// A policy (a mutating webhook) drops finalizers that it does not know from PersistentVolumes: csi-attacher's PATCH
// succeeds and it continues. belay-attacher writes both finalizers again, immediately and forever, and never attaches.
func TestDroppedFinalizerMakesNoHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.slow(10 * time.Millisecond)
		b.api.refuse = func(r *http.Request) error {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/persistentvolumes/") {
				r.Body = io.NopCloser(bytes.NewReader([]byte(`{"metadata":{}}`)))
			}
			return nil
		}
		defer b.start()()
		b.attach("v", "node")
		b.pass(time.Minute)
		sent := len(b.api.sent(time.Now().Add(-30 * time.Second)))
		if sent > 60 {
			t.Errorf("%d requests in 30 s for one VolumeAttachment (attached: %v)", sent, b.isAttached("v", "node"))
		}
	})
}

// "Never be slower than the part it replaces", "flags that you set keep their meaning": with --worker-threads=2 and nothing
// that hangs, csi-attacher has two calls in flight; belay-attacher has one.
func TestFewWorkerThreadsAreUsed(t *testing.T) {
	inBubble(t, 2, func(b *bubble) {
		b.answers(func(ctx context.Context, _ call) error { return lasting(ctx, time.Second) })
		const volumes = 20
		for i := range volumes {
			b.attach(fmt.Sprint("v", i), "node")
		}
		b.pass(11 * time.Second)
		done := 0
		for i := range volumes {
			if b.isAttached(fmt.Sprint("v", i), "node") {
				done++
			}
		}
		if done < volumes {
			t.Errorf("%d of %d volumes, of 1 s each, are attached after 11 s, with at most %d calls at once", done, volumes, b.atOnce())
		}
	})
}
