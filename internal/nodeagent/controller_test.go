package nodeagent

import (
	"slices"
	"sync"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// newAttachedWorld is a world whose driver needs attach. Volumes are attached when the Node lists them in use, and
// detached when it does not; and no stage or publish begins, and no unstage ends, without that (S7).
func newAttachedWorld(tb testing.TB, options ...func(*storagev1.CSIDriver)) *world {
	tb.Helper()
	w := newWorld(tb, options...)
	w.driver.Intercept(func(call string, request any, do func() (any, error)) (any, error) {
		r, ok := request.(interface{ GetVolumeId() string })
		if !ok {
			return do()
		}
		w.mustBeInUse(call+" begins", r.GetVolumeId())
		reply, err := do()
		if _, unstages := request.(*csispec.NodeUnstageVolumeRequest); unstages {
			w.mustBeInUse(call+" ends", r.GetVolumeId())
		}
		return reply, err
	})
	var running sync.WaitGroup
	stop := make(chan struct{})
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				w.attachWhatIsInUse()
			}
		}
	})
	tb.Cleanup(func() { close(stop); running.Wait() })
	return w
}

func (w *world) mustBeInUse(when, handle string) {
	node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
	if err == nil && !slices.Contains(node.Status.VolumesInUse, w.unique(handle)) {
		w.Errorf("S7: %s of %s, and in use are %v", when, handle, node.Status.VolumesInUse)
	}
}

func (w *world) attachWhatIsInUse() {
	node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return // the test has ended
	}
	for _, name := range node.Status.VolumesInUse {
		_, handle, _ := kube.ParseUniqueVolumeName(string(name))
		if err := w.tryAttach(handle); apierrors.IsAlreadyExists(err) {
			_ = w.report(handle, true) // again, after a detach that was called off
		}
	}
	for _, attached := range node.Status.VolumesAttached {
		if _, handle, _ := kube.ParseUniqueVolumeName(string(attached.Name)); !slices.Contains(node.Status.VolumesInUse, attached.Name) {
			_ = w.detach(handle)
		}
	}
}
