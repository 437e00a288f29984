package attacher

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// failing answers the first n calls of a method with an error.
func failing(method string, n int, err error) func(context.Context, call, int) (map[string]string, error) {
	left := n
	return func(_ context.Context, c call, _ int) (map[string]string, error) {
		if c.Method == method && left > 0 {
			left--
			return nil, err
		}
		return nil, nil
	}
}

// trouble fails the calls of a method until it is over: an error whose back-off is over before the attacher gets to it, as on a busy machine,
// is not recorded.
type trouble struct {
	method string
	fail   func(context.Context) error
	over   atomic.Bool
	calls  atomic.Int64 // that failed
}

func (f *trouble) answer(ctx context.Context, c call, _ int) (map[string]string, error) {
	if c.Method != f.method || f.over.Load() {
		return nil, nil
	}
	f.calls.Add(1)
	return nil, f.fail(ctx)
}

// always is the answer of each call that fails.
func always(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// untilDeadline hangs until the caller's deadline.
func untilDeadline(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// wantRepeated wants a call to have been sent twice or, where calls have a short deadline and the machine is busy, more
// often.
func (w *world) wantRepeated(want string) {
	w.t.Helper()
	if got := w.driver.Made(); len(got) < 2 || len(slices.Compact(slices.Clone(got))) != 1 || got[0] != want {
		w.t.Errorf("calls: %v, want %s at least twice", got, want)
	}
}

func (w *world) wantCalls(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.driver.Made()); diff != "" {
		w.t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// withFinalizer makes an attachment as an earlier attacher left it.
func withFinalizer(w *world, nodeID string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) {
		va.Finalizers = append(va.Finalizers, kube.AttacherFinalizer(w.driver.Name))
		if nodeID != "" {
			va.Annotations = map[string]string{kube.NodeIDAnnotation: nodeID}
		}
	}
}

func isAttachedAlready(va *storagev1.VolumeAttachment) { va.Status.Attached = true }

// TestCSIHandlerRefused: a request cannot be built. attachError holds the reason, no finalizer is stored and no call is
// sent. The attach continues without help as soon as the obstacle is removed.
func TestCSIHandlerRefused(t *testing.T) {
	tests := map[string]struct {
		arrange func(w *world)
		want    string
		mend    func(w *world)                    // nil if nothing can
		with    func(*storagev1.VolumeAttachment) // how the attachment is made; nil: plainly
	}{
		"unknown PV": {arrange: func(w *world) { w.node("node1") }, want: `not found`, mend: func(w *world) { w.volume("pv1") }},
		"PV with deletion timestamp": {arrange: func(w *world) {
			w.node("node1")
			w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{"example.com/keep"} })
			must(w.t, w.client.CoreV1().PersistentVolumes().Delete(w.t.Context(), w.name("pv1"), metav1.DeleteOptions{}))
		}, want: "is marked for deletion"},
		"unknown node": {arrange: func(w *world) { w.volume("pv1") }, want: "csinode.storage.k8s.io", mend: func(w *world) { w.node("node1") }},
		// What an earlier attach recorded is not where a new one goes.
		"unknown node, annotation": {arrange: func(w *world) { w.volume("pv1") }, want: "csinode.storage.k8s.io", mend: func(w *world) { w.node("node1") },
			with: func(va *storagev1.VolumeAttachment) {
				va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-old"}
			}},
		"CSINode exists without the driver": {arrange: func(w *world) { w.volume("pv1"); w.nodeWithID("node1", "") }, want: "does not contain driver",
			mend: func(w *world) {
				w.deleteNode("node1")
				w.node("node1")
			}},
		"missing secrets": {arrange: func(w *world) {
			w.node("node1")
			w.volume("pv1", withSecret(w, "s1"))
		}, want: "failed to load secret", mend: func(w *world) { w.secret("s1", nil) }},
		"ROX and RWO": {arrange: func(w *world) {
			w.node("node1")
			w.volume("pv1", func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteOnce}
			})
		}, want: "CSI does not support ReadOnlyMany and ReadWriteOnce"},
		"PV of another driver": {arrange: func(w *world) {
			w.node("node1")
			w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other.example.com" })
		}, want: "belongs to CSI driver"},
		"PV that is not CSI": {arrange: func(w *world) {
			w.node("node1")
			w.volume("pv1", func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}
			})
		}, want: "non-csi source"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.arrange(w)
			w.start()
			if tt.with == nil {
				tt.with = func(*storagev1.VolumeAttachment) {}
			}
			va := w.attachment("pv1", "node1", tt.with)
			stored := w.untilRefused(va, tt.want)
			if len(stored.Finalizers) != 0 {
				t.Errorf("finalizers %v on an attachment that cannot begin", stored.Finalizers)
			}
			w.wantCalls()
			if tt.mend == nil {
				return
			}
			tt.mend(w)
			stored = w.until(va, "attached", isAttached)
			if stored.Status.AttachError != nil {
				t.Errorf("attachError %q was not cleared", stored.Status.AttachError.Message)
			}
			w.wantCalls("Publish id-node1")
		})
	}
}

func TestCSIHandlerAlreadyAttachedIgnored(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	w.volume("pv2")
	w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
	w.start()
	w.until(w.attachment("pv2", "node1"), "attached", isAttached)
	w.wantCalls("Publish id-node1") // pv2's
}

func TestCSIHandlerUnknownDriverIgnored(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	w.volume("pv2")
	w.start()
	other := w.attachment("pv1", "node1", func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "other.example.com" })
	w.until(w.attachment("pv2", "node1"), "attached", isAttached)
	if va := w.get(other); va.Status.Attached || va.Status.AttachError != nil || len(va.Finalizers) != 0 {
		t.Errorf("another driver's attachment was touched: %+v", va)
	}
	w.delete(other)
}

func TestCSIAttachFailsThenSucceeds(t *testing.T) {
	tests := map[string]struct {
		err      error
		want     string
		wantCode *int32
	}{
		"with error code":             {status.Error(codes.ResourceExhausted, "mock rpc error"), "rpc error: code = ResourceExhausted desc = mock rpc error", new(int32(8))},
		"too long for the API server": {status.Error(codes.Internal, strings.Repeat("é", 2000)), "rpc error: code = Internal desc = " + strings.Repeat("é", 493) + "...", new(int32(13))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			fails := &trouble{method: "Publish", fail: always(tt.err)}
			w.driver.SetAnswer(fails.answer)
			w.node("node1")
			w.volume("pv1")
			w.start()
			va := w.attachment("pv1", "node1")
			stored := w.untilRefused(va, "rpc error")
			if diff := cmp.Diff(tt.want, stored.Status.AttachError.Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wantCode, stored.Status.AttachError.ErrorCode); diff != "" {
				t.Errorf("errorCode (-want +got):\n%s", diff)
			}
			fails.over.Store(true)
			if stored = w.until(va, "attached", isAttached); stored.Status.AttachError != nil {
				t.Errorf("attachError %q was not cleared", stored.Status.AttachError.Message)
			}
			w.wantCalls(slices.Repeat([]string{"Publish id-node1"}, int(fails.calls.Load())+1)...)
		})
	}
}

func TestCSIAttachTimesOut(t *testing.T) {
	w := newWorld(t)
	hangs := &trouble{method: "Publish", fail: untilDeadline}
	w.driver.SetAnswer(hangs.answer)
	w.node("node1")
	w.volume("pv1")
	w.start(func(c *Config) { c.Timeout = 300e6 })
	va := w.attachment("pv1", "node1")
	w.untilRefused(va, "DeadlineExceeded")
	w.driver.WaitCalls(1) // a call's time may be over before it gets to the driver
	hangs.over.Store(true)
	w.until(va, "attached", isAttached)
	w.wantRepeated("Publish id-node1")
}

func TestNodeCameBackUnderAnotherID(t *testing.T) {
	tests := map[string]struct {
		attached bool
		act      func(w *world, va string)
		want     []string
	}{
		"attached, then deleted: the recorded id is unpublished, and the present one, for the record may be wrong": {true, func(w *world, va string) {
			w.delete(va)
			w.until(va, "gone", isGone)
		}, []string{"Unpublish id-old", "Unpublish id-node1"}},
		"attach not recorded: the old id is taken back first": {false, func(w *world, va string) {
			if stored := w.until(va, "attached", isAttached); stored.Annotations[kube.NodeIDAnnotation] != "id-node1" {
				w.t.Errorf("node id %q", stored.Annotations[kube.NodeIDAnnotation])
			}
		}, []string{"Unpublish id-old", "Publish id-node1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("node1")
			w.volume("pv1")
			va := w.attachment("pv1", "node1", withFinalizer(w, "id-old"), func(va *storagev1.VolumeAttachment) { va.Status.Attached = tt.attached })
			w.start()
			tt.act(w, va)
			w.wantCalls(tt.want...)
		})
	}
}

func TestCSIHandlerDetach(t *testing.T) {
	failed := status.Error(codes.NotFound, "no such thing")
	tests := map[string]struct {
		arrange func(w *world) string
		fail    func(context.Context) error // the answer of the driver until want was seen
		want    string                      // in detachError until the detach can continue
		mend    func(w *world)
		calls   []string // without those that fail
		timeout time.Duration
	}{
		"VolumeAttachment marked for deletion": {arrange: func(w *world) string {
			w.node("node1")
			w.volume("pv1")
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, calls: []string{"Unpublish id-node1"}},
		"CSI detach fails, NotFound is no success": {arrange: func(w *world) string {
			w.node("node1")
			w.volume("pv1")
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, fail: always(failed), want: "no such thing", calls: []string{"Unpublish id-node1"}},
		"CSI detach fails, PermissionDenied": {arrange: func(w *world) string {
			w.node("node1")
			w.volume("pv1")
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, fail: always(status.Error(codes.PermissionDenied, "not yours")), want: "not yours", calls: []string{"Unpublish id-node1"}},
		"CSI detach times out": {arrange: func(w *world) string {
			w.node("node1")
			w.volume("pv1")
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, fail: untilDeadline, timeout: 300 * time.Millisecond, want: "DeadlineExceeded", calls: []string{"Unpublish id-node1"}},
		"unknown node, annotation": {arrange: func(w *world) string {
			w.volume("pv1")
			return w.attachment("pv1", "node1", withFinalizer(w, "id-gone"), isAttachedAlready)
		}, calls: []string{"Unpublish id-gone"}},
		"unknown node without annotation": {arrange: func(w *world) string {
			w.volume("pv1")
			return w.attachment("pv1", "node1", withFinalizer(w, ""), isAttachedAlready)
		}, want: "csinode.storage.k8s.io", mend: func(w *world) { w.node("node1") }, calls: []string{"Unpublish id-node1"}},
		"unknown PV": {arrange: func(w *world) string {
			w.node("node1")
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, want: "not found", mend: func(w *world) { w.volume("pv1") }, calls: []string{"Unpublish id-node1"}},
		"PV gone, another one of the same handle": {arrange: func(w *world) string {
			w.node("node1")
			w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = w.name("pv1") })
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, calls: []string{"Unpublish id-node1"}},
		"missing secrets": {arrange: func(w *world) string {
			w.node("node1")
			w.volume("pv1", withSecret(w, "s1"))
			return w.attachment("pv1", "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
		}, want: "failed to load secret", mend: func(w *world) { w.secret("s1", nil) }, calls: []string{"Unpublish id-node1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			fails := &trouble{method: "Unpublish", fail: tt.fail}
			fails.over.Store(tt.fail == nil)
			w.driver.SetAnswer(fails.answer)
			va := tt.arrange(w)
			w.start(func(c *Config) {
				if tt.timeout > 0 {
					c.Timeout = tt.timeout
				}
			})
			w.delete(va)
			if tt.want != "" {
				w.untilWas(va, "refused", hasDetachError(tt.want))
			}
			if tt.timeout > 0 {
				w.driver.WaitCalls(1) // a call's time may be over before it gets to the driver
			}
			fails.over.Store(true)
			if tt.mend != nil {
				tt.mend(w)
			}
			w.until(va, "gone", isGone)
			if tt.timeout > 0 {
				w.wantRepeated(tt.calls[0])
				return
			}
			w.wantCalls(append(slices.Repeat(tt.calls, int(fails.calls.Load())), tt.calls...)...)
		})
	}
}

func TestDeletedWithoutOurFinalizerIgnored(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	w.volume("pv2")
	va := w.attachment("pv1", "node1", func(va *storagev1.VolumeAttachment) { va.Finalizers = []string{"example.com/keep"} }, isAttachedAlready)
	w.delete(va)
	w.start()
	w.until(w.attachment("pv2", "node1"), "attached", isAttached)
	w.wantCalls("Publish id-node1") // pv2's
	w.removeFinalizers(va)
}

func (w *world) removeFinalizers(va string) {
	w.t.Helper()
	_, err := w.client.StorageV1().VolumeAttachments().Patch(w.t.Context(), va, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

// An attachment that the finalizer of another component keeps alive is reported as detached, and the finalizers of
// other components are left alone.
func TestDetachedAttachmentThatOthersKeep(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) { return map[string]string{"a": "b"}, nil })
	w.node("node1")
	w.volume("pv1")
	w.start()
	va := w.attachment("pv1", "node1", func(va *storagev1.VolumeAttachment) { va.Finalizers = []string{"example.com/keep"} })
	w.until(va, "attached", isAttached)
	w.delete(va)
	stored := w.until(va, "free of our finalizer", func(va *storagev1.VolumeAttachment) bool {
		return va == nil || len(va.Finalizers) == 1 && va.DeletionTimestamp != nil
	})
	if stored == nil || stored.Status.Attached || stored.Status.AttachmentMetadata != nil || stored.Finalizers[0] != "example.com/keep" {
		t.Errorf("kept attachment: %+v", stored)
	}
	w.removeFinalizers(va)
	w.wantCalls("Publish id-node1", "Unpublish id-node1")
}

func TestPublishContextReplacesAnEarlierOne(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) { return map[string]string{"new": "1"}, nil })
	w.node("node1")
	w.volume("pv1")
	va := w.attachment("pv1", "node1")
	stored := w.get(va)
	stored.Status.AttachmentMetadata = map[string]string{"old": "1"}
	if _, err := w.client.StorageV1().VolumeAttachments().UpdateStatus(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.start()
	stored = w.until(va, "attached", isAttached)
	if diff := cmp.Diff(map[string]string{"new": "1"}, stored.Status.AttachmentMetadata); diff != "" {
		t.Errorf("attachmentMetadata (-want +got):\n%s", diff)
	}
}

func TestPublishContextThatTheAPIServerRefuses(t *testing.T) {
	w := newWorld(t)
	var fits atomic.Bool
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) {
		if !fits.Load() {
			return map[string]string{"big": strings.Repeat("x", 300<<10)}, nil
		}
		return nil, nil
	})
	w.node("node1")
	w.volume("pv1")
	w.start()
	va := w.attachment("pv1", "node1")
	w.untilRefused(va, "could not save the publish context")
	fits.Store(true)
	w.until(va, "attached", isAttached)
}

func TestPVFinalizer(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1", func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{"example.com/keep"} })
	w.volume("pv2")
	w.start()
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.untilPV("pv1", true)
	must(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), w.name("pv1"), metav1.DeleteOptions{}))
	// VA exists -> ignored: another volume's whole way passes without it coming off.
	w.until(w.attachment("pv2", "node1"), "attached", isAttached)
	w.untilPV("pv1", true)
	w.delete(va)
	w.until(va, "gone", isGone)
	w.untilPV("pv1", false)
	pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), w.name("pv1"), metav1.GetOptions{})
	if err != nil || !strings.Contains(strings.Join(pv.Finalizers, " "), "example.com/keep") {
		t.Errorf("other finalizers were not preserved: %v, %v", pv.Finalizers, err)
	}
	w.patchPV("pv1", `{"metadata":{"finalizers":null}}`)
}

// Two attachments of one volume begun side by side leave its finalizer once.
func TestPVFinalizerOfConcurrentAttachments(t *testing.T) {
	w := newWorld(t)
	w.volume("pv1", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	var names []string
	for _, node := range []string{"n1", "n2", "n3", "n4", "n5"} {
		w.node(node)
		names = append(names, w.attachment("pv1", node))
	}
	w.start()
	for _, name := range names {
		w.until(name, "attached", isAttached)
	}
	pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), w.name("pv1"), metav1.GetOptions{})
	must(t, err)
	if n := strings.Count(strings.Join(pv.Finalizers, " "), kube.AttacherFinalizer(w.driver.Name)); n != 1 {
		t.Errorf("our finalizer is on the volume %d times: %v", n, pv.Finalizers)
	}
}

func TestGCEPDIsTranslated(t *testing.T) {
	// The name of the driver is fixed here, so this runs alone on it.
	w := newWorld(t)
	w.driver.Name = "pd.csi.storage.gke.io"
	w.node("node1")
	w.volume("pv1", func(pv *corev1.PersistentVolume) {
		pv.Labels = map[string]string{"topology.kubernetes.io/zone": "testZone"}
		pv.Annotations = map[string]string{migratedToAnnotation: w.driver.Name}
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "testpd"}}
	})
	w.start()
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.untilPV("pv1", true)
	must(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), w.name("pv1"), metav1.DeleteOptions{}))
	w.delete(va)
	w.until(va, "gone", isGone)
	w.untilPV("pv1", false)
	calls := w.driver.WaitCalls(2)
	const handle = "projects/UNSPECIFIED/zones/testZone/disks/testpd"
	if calls[0].Volume != handle || calls[1].Volume != handle {
		t.Errorf("handles %q and %q, want %q", calls[0].Volume, calls[1].Volume, handle)
	}
	if diff := cmp.Diff(map[string]string{"partition": ""}, calls[0].Request.(*csispec.ControllerPublishVolumeRequest).VolumeContext); diff != "" {
		t.Errorf("volume context (-want +got):\n%s", diff)
	}
}

func TestTrivialHandler(t *testing.T) {
	w := newWorld(t, csispec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	w.node("node1")
	w.volume("pv1")
	w.start()
	va := w.attachment("pv1", "node1")
	if stored := w.until(va, "attached", isAttached); len(stored.Finalizers) != 0 {
		t.Errorf("finalizers: %v", stored.Finalizers)
	}
	w.wantCalls()
	w.delete(va)
	w.until(va, "gone", isGone)
}

// A VolumeAttachment is deleted while its publish is in flight: the publish is abandoned, and the unpublish is sent when it has returned.
func TestDeletedDuringPublish(t *testing.T) {
	tests := map[string]struct {
		begin func(w *world, va string)
	}{
		"by the controller": {func(w *world, va string) {}},
		// A person removes our finalizer by force: nothing may stay published without a record of it.
		"by force": {func(w *world, va string) { w.removeFinalizers(va) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.SetAnswer(func(ctx context.Context, c call, _ int) (map[string]string, error) {
				if c.Method == "Publish" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, nil
			})
			w.node("node1")
			w.volume("pv1")
			w.start(func(c *Config) { c.Timeout = time.Hour })
			va := w.attachment("pv1", "node1")
			w.driver.WaitCalls(1)
			tt.begin(w, va)
			w.delete(va)
			w.until(va, "gone", isGone)
			w.driver.WaitCalls(2)
			w.wantCalls("Publish id-node1", "Unpublish id-node1")
		})
	}
}

// A secret that is missing from the start leaves nothing behind when the
// attachment is deleted: the driver was never asked.
func TestDeletedBeforeItCouldBegin(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.node("node2")
	w.volume("pv1", withSecret(w, "s1"))
	w.start()
	va := w.attachment("pv1", "node1")
	w.until(va, "refused", hasAttachError("failed to load secret"))
	w.delete(va)
	w.until(va, "gone", isGone)
	w.secret("s1", nil)
	w.until(w.attachment("pv1", "node2"), "attached", isAttached)
	w.wantCalls("Publish id-node2")
}

// Access modes are read again: the waiting attachment continues when the volume becomes shared.
func TestVolumeBecomesShared(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.node("node2")
	w.volume("pv1")
	w.start()
	w.until(w.attachment("pv1", "node1"), "attached", isAttached)
	va := w.attachment("pv1", "node2")
	w.until(va, "waiting", hasAttachError("still exists"))
	w.patchPV("pv1", `{"spec":{"accessModes":["ReadWriteMany"]}}`)
	w.until(va, "attached", isAttached)
	w.wantCalls("Publish id-node1", "Publish id-node2")
}

// An attachment was published through another PersistentVolume of the same handle. Its own PersistentVolume gets the
// finalizer when it appears: otherwise it could be deleted while it is attached.
func TestPVFinalizerIsAddedWhenThePVAppears(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv2", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = w.name("pv1") })
	w.start()
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.untilPV("pv2", true)
	w.volume("pv1")
	w.untilPV("pv1", true)
	for _, pv := range []string{"pv1", "pv2"} {
		must(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), w.name(pv), metav1.DeleteOptions{}))
	}
	w.delete(va)
	w.until(va, "gone", isGone)
	w.untilPV("pv1", false)
	w.wantCalls("Publish id-node1", "Unpublish id-node1")
}
