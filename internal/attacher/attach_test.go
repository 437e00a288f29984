package attacher

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestVolumeAttachmentAddedSuccessfulAttachmentAndDetach(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) {
		return map[string]string{"device": "/dev/x"}, nil
	})
	w.node("node1")
	w.volume("pv1")
	w.start()
	begun := time.Now()
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	t.Logf("attached after %v", time.Since(begun))
	stored := w.get(va)
	if diff := cmp.Diff(map[string]string{"device": "/dev/x"}, stored.Status.AttachmentMetadata); diff != "" {
		t.Errorf("attachmentMetadata (-want +got):\n%s", diff)
	}
	w.untilPV("pv1", true)
	begun = time.Now()
	w.delete(va)
	w.until(va, "gone", isGone)
	t.Logf("detached after %v", time.Since(begun))
	if diff := cmp.Diff([]string{"Publish id-node1", "Unpublish id-node1"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestHundredAttachesAreHundredPublishCalls(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(func(ctx context.Context, _ call, nth int) (map[string]string, error) {
		if nth%2 == 0 { // slow enough for our own events to arrive in between
			select {
			case <-time.After(30 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return nil, nil
	})
	w.node("node1")
	for i := range 100 {
		w.volume(fmt.Sprint("pv", i))
	}
	w.start()
	begun := time.Now()
	var names []string
	for i := range 100 {
		names = append(names, w.attachment(fmt.Sprint("pv", i), "node1"))
	}
	for _, name := range names {
		w.until(name, "attached", isAttached)
	}
	t.Logf("100 attached after %v", time.Since(begun))
	if n := len(w.driver.Made()); n != 100 {
		t.Errorf("driver received %d calls, want 100", n)
	}
	for _, name := range names {
		w.delete(name)
	}
	for _, name := range names {
		w.until(name, "gone", isGone)
	}
	if n := len(w.driver.Made()); n != 200 {
		t.Errorf("driver received %d calls, want 200", n)
	}
	if w.driver.Overlaps != 0 {
		t.Errorf("%d calls overlapped on one volume", w.driver.Overlaps)
	}
}
