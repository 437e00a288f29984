package attacher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// asShipped configures an attacher as its flags do by default, except that no call that hangs ends during the test.
func asShipped(w *world) func(*Config) {
	return func(c *Config) {
		c.Client = kubernetes.NewForConfigOrDie(w.config)
		c.Timeout, c.RetryStart, c.RetryMax = time.Hour, time.Second, 5*time.Minute
		c.WorkerThreads, c.DrainTimeout = defaultWorkerThreads, 0
	}
}

// many does something n times, some at a time.
func many(t *testing.T, n int, do func(i int)) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error { do(i); return nil })
	}
	must(t, group.Wait())
}

// attachTimed attaches a new volume and tells how long that took, from the request
// that makes the VolumeAttachment to the event that says attached.
func (w *world) attachTimed(name string) time.Duration {
	w.t.Helper()
	w.volume(name)
	watch, err := w.client.StorageV1().VolumeAttachments().Watch(w.t.Context(), metav1.ListOptions{})
	must(w.t, err)
	defer watch.Stop()
	begun := time.Now()
	va := w.attachment(name, "node1")
	late := time.After(wait.Timeout)
	for {
		select {
		case event := <-watch.ResultChan():
			if seen, ok := event.Object.(*storagev1.VolumeAttachment); ok && seen.Name == va && isAttached(seen) {
				return time.Since(begun)
			}
		case <-late:
			w.t.Fatalf("%s is not attached after %v", name, wait.Timeout)
		}
	}
}

// healthyVolumes is how many are attached one after another, for a median.
const healthyVolumes = 9

func (w *world) medianAttach(prefix string) time.Duration {
	w.t.Helper()
	var took []time.Duration
	for i := range healthyVolumes {
		took = append(took, w.attachTimed(fmt.Sprint(prefix, i)))
	}
	slices.Sort(took)
	w.t.Logf("%s volumes: median %v, longest %v", prefix, took[len(took)/2], took[len(took)-1])
	return took[len(took)/2]
}

// As shipped, with 150 volumes whose calls are never answered, not even when they are cancelled, and 30 detaches in
// flight that do not end, healthy volumes attach as on an idle attacher, and wait for none of those.
// TestHealthyVolumeBesideTrouble measures how long to the millisecond.
func TestHealthyVolumesAsShipped(t *testing.T) {
	const hung, detached = 150, 30
	w := newWorld(t)
	never, detach := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(never) })
	w.driver.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
		switch {
		case strings.Contains(c.Volume, "-bad"):
			<-never
		case c.Method == "Unpublish":
			<-detach
		}
		return nil, nil
	})
	w.node("node1")
	many(t, detached, func(i int) {
		name := fmt.Sprint("gone", i)
		w.volume(name)
		w.attachment(name, "node1", withFinalizer(w, "id-node1"), isAttachedAlready)
	})
	many(t, hung, func(i int) { w.volume(fmt.Sprint("bad", i)) })
	w.start(asShipped(w))
	idle := w.medianAttach("idle")

	many(t, hung, func(i int) { w.attachment(fmt.Sprint("bad", i), "node1") })
	w.driver.WaitCalls(healthyVolumes + hung)
	many(t, detached, func(i int) {
		w.delete(kube.AttachmentName(w.name(fmt.Sprint("gone", i)), w.driver.Name, w.name("node1")))
	})
	w.driver.WaitCalls(healthyVolumes + hung + detached)
	troubled := w.medianAttach("healthy")
	// The machine may be busier than before. A volume that waits for a hanging call is never attached.
	if over := troubled - idle; over > time.Minute {
		t.Errorf("healthy volumes take %v longer than on an idle attacher", over)
	}

	close(detach)
	for i := range detached {
		w.until(kube.AttachmentName(w.name(fmt.Sprint("gone", i)), w.driver.Name, w.name("node1")), "detached", isGone)
	}
}

// What a person can do about an unpublish that never succeeds, and what has no effect.
func TestUnpublishThatNeverSucceedsCanBeAbandoned(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(failing("Unpublish", 1<<30, errFull))
	w.node("node-a")
	w.node("node-b")
	w.volume("pv1")
	w.start()
	a := w.attachment("pv1", "node-a")
	w.until(a, "attached", isAttached)
	w.delete(a)
	b := w.attachment("pv1", "node-b")
	w.until(b, "waiting", hasAttachError("still exists"))
	w.until(a, "failing", hasDetachError("node is full"))
	// The finalizer is removed by hand. This process still remembers the call.
	if _, err := w.client.StorageV1().VolumeAttachments().Patch(t.Context(), a, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until(a, "gone", isGone)
	calls := len(w.driver.Made())
	w.driver.WaitCalls(calls + 2)
	if slices.Contains(w.driver.Made(), "Publish id-node-b") {
		t.Fatalf("published to B although the driver never confirmed that A has it no more: %v", w.driver.Made())
	}
	// After a restart nothing is left that shows it.
	w.stop()
	w.start()
	w.until(b, "attached", isAttached)
}
