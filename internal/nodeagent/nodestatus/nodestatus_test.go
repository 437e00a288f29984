package nodestatus

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// nodeWorld is a Status with a fake client, and what its handlers got.
type nodeWorld struct {
	*Status
	api *fake.Clientset

	mu      sync.Mutex
	learned []string
	trouble error
}

func newNodeWorld(t *testing.T, records map[string]nodevolume.Knowledge, objects ...runtime.Object) *nodeWorld {
	t.Helper()
	w := &nodeWorld{api: fake.NewClientset(objects...)}
	w.Status = New(Config{NodeName: "n", Client: w.api, Log: logr.Discard()}, Handlers{
		Observed: func(*corev1.Node) {},
		VolumesChanged: func(names []string) {
			w.View("v") // no lock is held: this would wait forever
			w.mu.Lock()
			defer w.mu.Unlock()
			w.learned = append(w.learned, names...)
		},
		Relabelled: func() { w.Labels() },
		Handshakes: func(names []string) map[string]nodevolume.Knowledge {
			w.Started()
			return records
		},
		Started: func([]string) { w.Started() },
		Blocked: func(err error) { w.mu.Lock(); defer w.mu.Unlock(); w.trouble = err },
	})
	return w
}

func nodeAt(version string, inUse, attached []string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: types.UID("uid"), ResourceVersion: version}}
	for _, name := range inUse {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(name))
	}
	for _, name := range attached {
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(name)})
	}
	return node
}

// serve runs the writer until the test ends.
func (w *nodeWorld) serve(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.write(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// TestNodeEventDuringFirstRead: the watch delivers that version of the Node once, so it must not be lost.
func TestNodeEventDuringFirstRead(t *testing.T) {
	w := newNodeWorld(t, nil, nodeAt("5", nil, nil))
	labelled := func(node *corev1.Node, zone string) *corev1.Node {
		node.Labels = map[string]string{"zone": zone}
		return node
	}
	w.api.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		w.observe(labelled(nodeAt("6", []string{"v"}, []string{"v"}), "new"))
		return true, labelled(nodeAt("5", nil, nil), "old"), nil
	})
	if _, err := w.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := w.View("v")
	got.Changes = 0
	if diff := cmp.Diff(nodevolume.Node{InUse: nodevolume.Yes, Attached: nodevolume.Yes}, got); diff != "" {
		t.Errorf("what is believed of the volume (-want +got):\n%s", diff)
	}
	if labels, _ := w.Labels(); labels["zone"] != "new" {
		t.Errorf("the Node's labels are %v", labels)
	}
}

// TestInUseCountsOnlyOnceItIsWritten, and not after a failed write.
func TestInUseCountsOnlyOnceItIsWritten(t *testing.T) {
	w := newNodeWorld(t, nil)
	refuse := true
	w.api.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nodeAt("5", nil, nil), nil })
	w.api.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if refuse {
			refuse = false
			return true, nil, errors.New("no route to host")
		}
		return true, nodeAt("6", []string{"v"}, nil), nil
	})
	w.Decide("v", func(node nodevolume.Node) nodevolume.Decision {
		if node.InUse != nodevolume.Unknown {
			t.Errorf("in use: %s, and nothing was read", node.InUse)
		}
		return nodevolume.Decision{InUse: nodevolume.Yes}
	})
	w.serve(t)
	wait.Until(t, "the volume is listed in use", func() bool { return w.View("v").InUse == nodevolume.Yes })
	wait.Until(t, "there is no trouble any more", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.trouble == nil })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.learned) == 0 {
		t.Error("no handler was called for the volume")
	}
}

// TestDeletedNodeIsUnknown: nothing that it reported counts any more.
func TestDeletedNodeIsUnknown(t *testing.T) {
	w := newNodeWorld(t, map[string]nodevolume.Knowledge{"v": nodevolume.Yes})
	node := nodeAt("5", []string{"v"}, []string{"v"})
	w.api.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if node == nil {
			return false, nil, nil // the fake has none
		}
		return true, node, nil
	})
	if _, err := w.read(t.Context()); err != nil || w.View("v").Attached != nodevolume.Yes {
		t.Fatalf("read: %v; the volume is %+v", err, w.View("v"))
	}
	w.Decide("v", func(nodevolume.Node) nodevolume.Decision { return nodevolume.Decision{InUse: nodevolume.Yes} })
	before := w.View("v").Changes
	node = nil
	gone, err := w.read(t.Context())
	if view := w.View("v"); err != nil || !gone || view.Attached != nodevolume.Unknown || view.Changes == before {
		t.Errorf("gone: %v, %v; the volume is %+v", gone, err, view)
	}
}
