package attacher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// lossy loses requests to the API server, or the replies to them.
type lossy struct {
	http.RoundTripper

	mu      sync.Mutex
	matches func(r *http.Request, body string) bool
	left    int
	reply   bool // the request arrives, its reply is lost
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPatch {
		return l.RoundTripper.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	l.mu.Lock()
	hit := l.left > 0 && l.matches(r, string(body))
	if hit {
		l.left--
	}
	l.mu.Unlock()
	if !hit {
		return l.RoundTripper.RoundTrip(r)
	}
	if l.reply {
		if response, err := l.RoundTripper.RoundTrip(r); err == nil {
			_ = response.Body.Close()
		}
	}
	return nil, errors.New("connection lost")
}

// Every write of a whole attach and detach is lost, before or after it reached
// the API server: the driver is still asked exactly once for each.
func TestLostWrites(t *testing.T) {
	on := func(path, text string) func(*http.Request, string) bool {
		return func(r *http.Request, body string) bool {
			return strings.Contains(r.URL.Path, path) && strings.Contains(body, text)
		}
	}
	const status = "/status"
	writes := map[string]func(*http.Request, string) bool{
		"error saving PV finalizer -> controller retries":                 on("persistentvolumes", "finalizers"),
		"failed write with VA finalizers -> controller retries":           on("volumeattachments", `"finalizers"`),
		"failed write with attached=true -> recorded later":               on(status, `"attached":true`),
		"failed write with finalizer removal -> controller retries":       on("volumeattachments", "deleteFromPrimitiveList"),
		"failed write of both first patches -> controller retries":        on("", `"finalizers"`),
		"every request fails for a while -> everything goes on by itself": on("", ""),
	}
	for name, matches := range writes {
		t.Run(name, func(t *testing.T) {
			for kind, reply := range map[string]bool{"request lost": false, "reply lost": true} {
				t.Run(kind, func(t *testing.T) { testLostWrite(t, &lossy{matches: matches, left: 3, reply: reply}) })
			}
		})
	}
}

func testLostWrite(t *testing.T, faults *lossy) {
	t.Helper()
	w := newWorld(t)
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) {
		w.wantFinalizers("pv1") // S10
		return nil, nil
	})
	w.node("node1")
	w.volume("pv1")
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { faults.RoundTripper = next; return faults }))
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.delete(va)
	w.until(va, "gone", isGone)
	w.wantCalls("Publish id-node1", "Unpublish id-node1")
	if faults.mu.Lock(); faults.left == 3 {
		t.Error("nothing was lost")
	}
	faults.mu.Unlock()
}

// wantFinalizers wants our finalizer on a PersistentVolume, and on all VolumeAttachments of the driver.
func (w *world) wantFinalizers(volume string) {
	finalizer := kube.AttacherFinalizer(w.driver.Name)
	pv, err := w.client.CoreV1().PersistentVolumes().Get(w.t.Context(), w.name(volume), metav1.GetOptions{})
	if err != nil || !slices.Contains(pv.Finalizers, finalizer) {
		w.t.Errorf("the driver was called before the finalizer was stored on the PersistentVolume: %v", err)
	}
	all, err := w.client.StorageV1().VolumeAttachments().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Error(err)
		return
	}
	for _, va := range all.Items {
		if va.Spec.Attacher == w.driver.Name && !slices.Contains(va.Finalizers, finalizer) {
			w.t.Errorf("the driver was called before the finalizer was stored on VolumeAttachment %s", va.Name)
		}
	}
}

// An error that cannot be saved does not stop anything.
func TestErrorThatCannotBeSaved(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	faults := &lossy{left: 3, matches: func(_ *http.Request, body string) bool { return strings.Contains(body, "attachError\":{") }}
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { faults.RoundTripper = next; return faults }))
	va := w.attachment("pv1", "node1")
	w.until(va, "refused", hasAttachError("not found"))
	w.volume("pv1", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.until(va, "attached", isAttached)
	w.wantCalls("Publish id-node1")
}

// The finalizer of a PersistentVolume comes off although the request fails first.
func TestPVFinalizerRemovalFails(t *testing.T) {
	w := newWorld(t)
	w.node("node1")
	w.volume("pv1")
	faults := &lossy{left: 3, matches: func(r *http.Request, body string) bool {
		return strings.Contains(r.URL.Path, "persistentvolumes") && strings.Contains(body, "deleteFromPrimitiveList")
	}}
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper { faults.RoundTripper = next; return faults }))
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.patchPV("pv1", `{"metadata":{"annotations":{"changed":"while attached"}}}`) // VA exists -> ignored
	must(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), w.name("pv1"), metav1.DeleteOptions{}))
	w.delete(va)
	w.until(va, "gone", isGone)
	w.untilPV("pv1", false)
}
