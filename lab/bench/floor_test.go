package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestFloor walks one volume through an attach, a move that has to wait for the unmount, and the
// end, with an API server in memory.
func TestFloor(t *testing.T) { synctest.Test(t, testFloor) }

func testFloor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := fake.NewClientset()
	o := objects{client: client}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(o.base(ctx))
	must(o.node(ctx, "n1"))
	must(o.node(ctx, "n2"))
	must(o.volume(ctx, "v"))
	watch, err := observe(ctx, client)
	must(err)
	defer watch.close()
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- floorWith(working, client) }()

	await := func(facts ...fact) {
		t.Helper()
		_, err := watch.last(ctx, facts)
		must(err)
	}
	// The fake API server has no status of its own to write: the attacher's part is an update.
	attach := func(node string) {
		t.Helper()
		await(volumeHeld(node, "v"))
		list, err := client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		must(err)
		if len(list.Items) != 1 || list.Items[0].Spec.NodeName != node {
			t.Fatalf("attachments: %+v", list.Items)
		}
		list.Items[0].Status.Attached = true
		_, err = client.StorageV1().VolumeAttachments().UpdateStatus(ctx, &list.Items[0], metav1.UpdateOptions{})
		must(err)
		await(volumeReported(node, "v"))
	}
	must(o.pod(ctx, "a", "v", "n1"))
	attach("n1")
	must(o.use(ctx, "n1", "v", true))
	await(volumeInUse("n1", "v"))
	synctest.Wait() // the floor has its own watches
	must(o.pod(ctx, "b", "v", "n2"))
	must(o.remove(ctx, "a"))
	await(podGone("a"), podBound("b"))
	synctest.Wait()
	watch.mu.Lock()
	_, known := watch.since[volumeWithdrawn("n1", "v")]
	watch.mu.Unlock()
	if known {
		t.Error("withdrawn while in use")
	}
	must(o.use(ctx, "n1", "v", false))
	await(volumeWithdrawn("n1", "v"), volumeDetached("n1", "v"))
	attach("n2")
	must(o.remove(ctx, "b"))
	await(volumeWithdrawn("n2", "v"), volumeDetached("n2", "v"))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWhenEndsWithContext(t *testing.T) {
	watch, err := observe(t.Context(), fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	defer watch.close()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, context.DeadlineExceeded)
	defer cancel()
	_, err = watch.when(ctx, podBound("nobody"))
	if err == nil || err.Error() != "waiting until pod nobody is bound: context deadline exceeded" {
		t.Errorf("got %v", err)
	}
	at := time.Now()
	watch.saw(podBound("p"), podGone("p"))
	watch.forget(podBound("p"))
	watch.saw(podBound("p"), podGone("p"))
	if since, err := watch.when(t.Context(), podBound("p")); err != nil || since.Before(at) {
		t.Errorf("seen at %v, %v", since, err)
	}
}
