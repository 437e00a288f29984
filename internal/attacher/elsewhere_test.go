package attacher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"belay.dev/belay/internal/kube"
)

// elsewhere is where the VolumeAttachment says that the driver lists the volume too.
func (b *bubble) elsewhere(volume, node string) string {
	e, _ := kube.ElsewhereOf(b.attachment(volume, node), time.Now())
	return e.Node + " " + e.NodeID
}

// A volume that the driver lists at another node too says so on its VolumeAttachment, as long as lists do: with one request, and one each 45 minutes.
func TestPublishedElsewhereIsWritten(t *testing.T) {
	inListingBubble(t, func(b *bubble, s *array) {
		b.node("node2", "id-node2")
		b.attach("v", "node1")
		b.pass(time.Second)
		s.put("v", "id-node2")
		begun := time.Now()
		b.pass(50 * time.Second)
		if got := b.elsewhere("v", "node1"); got != " " {
			t.Errorf("after one list: %s", got)
		}
		b.within(90*time.Second, "written after two lists", func() bool { return b.elsewhere("v", "node1") == "node2 id-node2" })
		b.pass(5*time.Hour + 30*time.Minute)
		if n := b.requests(begun); n != 8 {
			t.Errorf("%d requests in five hours and a half, want one, and one for each 45 minutes", n)
		}
		if got := b.elsewhere("v", "node1"); got != "node2 id-node2" {
			t.Errorf("after hours: %s", got)
		}
		s.take("v", "id-node2")
		b.within(time.Minute, "removed after a list", func() bool { return b.elsewhere("v", "node1") == " " })
		if calls := b.received("v"); len(calls) != 1 {
			t.Errorf("calls: %v, want the first publish only", calls)
		}
	})
}

// The next process knows of it: it publishes nothing there for a person's retry (S1), and removes the annotation when a list no longer has it.
func TestPublishedElsewhereByAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.driver.ControllerServices = canList
		s := attachArray(b.driver)
		b.answers(func(_ context.Context, c call) error { s.serve(c); return nil })
		everyMinute := func(c *Config) { c.ReconcileSync = time.Minute }
		b.node("node2", "id-node2")
		b.attachedBefore("v", "node1")
		s.put("v", "id-node2") // and no longer at node1
		stop := b.start(everyMinute)
		b.within(3*time.Minute, "written", func() bool { return b.elsewhere("v", "node1") == "node2 id-node2" })
		stop()
		stop = b.start(everyMinute)
		b.pass(time.Second)
		b.annotate("v", "node1", kube.RetryAnnotation, "1")
		b.pass(5 * time.Minute)
		if calls := b.received("v"); len(calls) != 0 || b.elsewhere("v", "node1") != "node2 id-node2" {
			t.Errorf("calls: %v, written: %s", calls, b.elsewhere("v", "node1"))
		}
		stop()
		s.take("v", "id-node2")
		s.put("v", "id-node1")
		defer b.start(everyMinute)()
		b.within(2*time.Minute, "removed by a process that finds it", func() bool { return b.elsewhere("v", "node1") == " " })
	})
}
