package attacher

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// through makes an attacher's client go through a round tripper.
func (w *world) through(wrap func(http.RoundTripper) http.RoundTripper) func(*Config) {
	return func(c *Config) {
		config := w.attacherConfig()
		config.Wrap(wrap)
		c.Client = kubernetes.NewForConfigOrDie(config)
	}
}

func (w *world) patch(va, patch string, subresources ...string) {
	w.t.Helper()
	if _, err := w.client.StorageV1().VolumeAttachments().Patch(w.t.Context(), va, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		w.t.Fatal(err)
	}
}

// anHour is a back-off that no test waits for.
func anHour(c *Config) { c.RetryStart, c.RetryMax = time.Hour, time.Hour }

// An attachment that is updated is processed again immediately, without waiting for its back-off.
func TestUpdatedWhileBackingOff(t *testing.T) {
	for name, inline := range map[string]bool{"of a PersistentVolume": false, "inline": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.SetAnswer(failing("Publish", 1, status.Error(codes.Internal, "not now")))
			w.node("node1")
			pv := w.volume("pv1")
			w.start(anHour)
			va := w.attachment("pv1", "node1", func(va *storagev1.VolumeAttachment) {
				if inline {
					spec := pv.Spec
					spec.Capacity = nil // refused by the API server here
					va.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &spec}
				}
			})
			w.until(va, "failed", hasAttachError("not now"))
			w.patch(va, `{"metadata":{"labels":{"try":"again"}}}`)
			w.until(va, "attached", isAttached)
			w.wantCalls("Publish id-node1", "Publish id-node1")
		})
	}
}

// An update of the errors in the status, or of managedFields, does not end a back-off: the attacher itself writes them.
func TestWhatEndsTheBackOff(t *testing.T) {
	tests := map[string]struct {
		change func(w *world, va string)
		ends   bool
	}{
		"another attachError": {change: func(w *world, va string) { w.patch(va, `{"status":{"attachError":{"message":"else"}}}`, "status") }},
		"a detachError":       {change: func(w *world, va string) { w.patch(va, `{"status":{"detachError":{"message":"else"}}}`, "status") }},
		"no attachError":      {change: func(w *world, va string) { w.patch(va, `{"status":{"attachError":null}}`, "status") }},
		"managedFields": {change: func(w *world, va string) {
			w.patch(va, `{"metadata":{"managedFields":[{}]}}`)
		}},
		"an annotation": {ends: true, change: func(w *world, va string) { w.patch(va, `{"metadata":{"annotations":{"a":"b"}}}`) }},
		"a finalizer": {ends: true, change: func(w *world, va string) {
			w.patch(va, `{"metadata":{"finalizers":["example.com/keep","`+kube.AttacherFinalizer(w.driver.Name)+`"]}}`)
		}},
		"its PersistentVolume": {ends: true, change: func(w *world, _ string) { w.patchPV("pv1", `{"spec":{"mountOptions":["noatime"]}}`) }},
		"its CSINode": {ends: true, change: func(w *world, _ string) {
			w.deleteNode("node1")
			w.nodeWithID("node1", "id-new")
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
				if c.Volume == w.name("pv1") && c.Node == "id-node1" && c.Method == "Publish" {
					return nil, status.Error(codes.Internal, "not now")
				}
				return nil, nil
			})
			w.node("node1")
			w.node("node2")
			w.volume("pv1")
			w.volume("pv2")
			w.start(anHour)
			va := w.attachment("pv1", "node1")
			w.until(va, "failed", hasAttachError("not now"))
			tt.change(w, va)
			if tt.ends {
				w.driver.WaitCalls(2)
				return
			}
			// A change that was made before another attachment was created has been seen when that one is attached.
			w.until(w.attachment("pv2", "node2"), "attached", isAttached)
			w.wantCalls("Publish id-node1", "Publish id-node2")
		})
	}
}

// S10: the finalizer of a PersistentVolume that lacks it is stored before the driver is
// called, also where an earlier attacher has dealt with the VolumeAttachment.
func TestPVFinalizerIsAddedBeforeTheCall(t *testing.T) {
	w := newWorld(t)
	var protected atomic.Bool
	w.driver.SetAnswer(func(ctx context.Context, _ call, _ int) (map[string]string, error) {
		pv, err := w.client.CoreV1().PersistentVolumes().Get(ctx, w.name("pv1"), metav1.GetOptions{})
		protected.Store(err == nil && slices.Contains(pv.Finalizers, kube.AttacherFinalizer(w.driver.Name)))
		return nil, nil
	})
	w.node("node1")
	w.volume("pv1")
	va := w.attachment("pv1", "node1", withFinalizer(w, "id-node1"))
	w.start()
	w.until(va, "attached", isAttached)
	if !protected.Load() {
		t.Error("the driver was called before the PersistentVolume had its finalizer")
	}
}

// refusing answers 403 to some requests.
type refusing struct {
	http.RoundTripper

	path string
	left atomic.Int64
}

func (f *refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, f.path) || f.left.Add(-1) < 0 {
		return f.RoundTripper.RoundTrip(r)
	}
	return &http.Response{
		Request: r, StatusCode: http.StatusForbidden, Status: "403 Forbidden", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(nil)),
	}, nil
}

// A lasting refusal is reported in the status, and cleared when it is over.
func TestPVFinalizerRefused(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	refuses := &refusing{path: "persistentvolumes"}
	refuses.left.Store(1 << 30)
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { refuses.RoundTripper = next; return refuses }))
	va := w.attachment("pv1", "node1")
	w.untilRefused(va, "could not add PersistentVolume finalizer: ")
	refuses.left.Store(0)
	if stored := w.until(va, "attached", isAttached); stored.Status.AttachError != nil {
		t.Errorf("attachError %q was not cleared", stored.Status.AttachError.Message)
	}
	w.wantCalls("Publish id-node1")
}

// A detach error that cannot be saved does not stop anything.
func TestDetachErrorThatCannotBeSaved(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	faults := &lossy{left: 3, matches: func(_ *http.Request, body string) bool { return strings.Contains(body, "detachError\":{") }}
	va := w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { faults.RoundTripper = next; return faults }))
	w.delete(va)
	w.until(va, "refused", hasDetachError("not found"))
	w.volume("pv1")
	w.until(va, "gone", isGone)
	w.wantCalls("Unpublish id-node1")
}

func TestTrivialHandlerFailedWrite(t *testing.T) {
	w := newWorld(t, csispec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	w.volume("pv1")
	w.volume("pv2")
	faults := &lossy{left: 3, matches: func(r *http.Request, _ string) bool { return strings.Contains(r.URL.Path, "/status") }}
	other := w.attachment("pv2", "node1", func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "other.example.com" })
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { faults.RoundTripper = next; return faults }))
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.patch(va, `{"status":{"attached":false}}`, "status")
	w.until(va, "attached", isAttached)
	if stored := w.get(other); stored.Status.Attached {
		t.Error("another driver's attachment was touched")
	}
	w.delete(other)
	w.delete(va)
}

// The finalizer stays on a PersistentVolume that lives, and comes off when it is deleted.
func TestPVDeletedLaterThanItsAttachment(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{"example.com/keep"} })
	w.volume("pv2")
	w.start()
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.delete(va)
	w.until(va, "gone", isGone)
	w.until(w.attachment("pv2", "node1"), "attached", isAttached)
	w.untilPV("pv1", true)
	must(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), w.name("pv1"), metav1.DeleteOptions{}))
	w.untilPV("pv1", false)
	w.patchPV("pv1", `{"metadata":{"finalizers":null}}`)
}

// heldBack keeps requests for one resource waiting.
type heldBack struct {
	http.RoundTripper

	resource string
	free     chan struct{}
	once     sync.Once
	reached  chan struct{} // closed when another resource's watch was answered
}

func (h *heldBack) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/"+h.resource) {
		select {
		case <-h.free:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	response, err := h.RoundTripper.RoundTrip(r)
	if strings.HasSuffix(r.URL.Path, "/volumeattachments") {
		h.once.Do(func() { close(h.reached) })
	}
	return response, err
}

// Nothing is decided before the CSINodes are synced: a node whose CSINode was not listed yet must not count as one
// without the driver.
func TestCSINodesAreAwaited(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	w.volume("pv2")
	va := w.attachment("pv1", "node1")
	gone := w.attachment("pv2", "node1", withFinalizer(w, ""), isAttachedAlready)
	w.delete(gone)
	late := &heldBack{resource: "csinodes", free: make(chan struct{}), reached: make(chan struct{})}
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { late.RoundTripper = next; return late }))
	wait.For(t, "the request for CSINodes", late.reached)
	time.AfterFunc(time.Second, func() { close(late.free) }) // long enough for a decision without them
	w.until(va, "attached", func(va *storagev1.VolumeAttachment) bool {
		if va.Status.AttachError != nil {
			t.Errorf("attachError %q", va.Status.AttachError.Message)
		}
		return isAttached(va)
	})
	w.until(gone, "gone", isGone)
	calls := w.driver.Made()
	slices.Sort(calls)
	if !slices.Equal(calls, []string{"Publish id-node1", "Unpublish id-node1"}) {
		t.Errorf("calls: %v", calls)
	}
}
