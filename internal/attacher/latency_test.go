package attacher

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nothing polls or sleeps in an attach and a detach: in fake time, neither takes any.
func TestAttachAndDetachTakeNoTime(t *testing.T) {
	inBubble(t, 1, func(b *bubble) {
		for i := range 20 {
			volume := fmt.Sprint("v", i)
			b.attach(volume, "node1")
			synctest.Wait() // and no time passes
			if !b.isAttached(volume, "node1") {
				t.Fatalf("%s is not attached at once", volume)
			}
			b.detach(volume, "node1")
			synctest.Wait()
			if !b.isGone(volume, "node1") {
				t.Fatalf("%s is not detached at once", volume)
			}
		}
	})
}

// TestLatencyOfOneAttach prints how long each step of an attach takes on an idle attacher, in real time.
func TestLatencyOfOneAttach(t *testing.T) {
	w := newWorld(t)
	published := make(chan time.Time, 1)
	w.driver.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
		if c.Method == "Publish" {
			published <- time.Now()
		}
		return nil, nil
	})
	w.node("node1")
	w.start()
	watch, err := w.client.StorageV1().VolumeAttachments().Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer watch.Stop()
	var toPublish, toRecord, toGone []time.Duration
	for i := range 20 {
		w.volume(fmt.Sprint("pv", i))
		name := w.attachment(fmt.Sprint("pv", i), "node1")
		var created time.Time
		for event := range watch.ResultChan() {
			va, ok := event.Object.(*storagev1.VolumeAttachment)
			if !ok || va.Name != name {
				continue
			}
			if event.Type == "ADDED" {
				created = time.Now()
			}
			if isAttached(va) {
				break
			}
		}
		at := <-published
		toPublish, toRecord = append(toPublish, at.Sub(created)), append(toRecord, time.Since(at))
		begun := time.Now()
		w.delete(name)
		for event := range watch.ResultChan() {
			if va, ok := event.Object.(*storagev1.VolumeAttachment); ok && va.Name == name && event.Type == "DELETED" {
				break
			}
		}
		toGone = append(toGone, time.Since(begun))
	}
	for what, took := range map[string][]time.Duration{
		"seen -> publish sent": toPublish, "publish answered -> attached seen": toRecord, "delete sent -> gone seen": toGone,
	} {
		slices.Sort(took)
		t.Logf("%s: median %v, min %v, max %v", what, took[len(took)/2], took[0], took[len(took)-1])
	}
}
