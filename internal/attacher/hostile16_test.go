package attacher

import (
	"context"
	"errors"
	"testing"
	"time"

	"belay.dev/belay/internal/kube"
)

// A volume was listed at node2 too, and is at node3 now. The annotation names node2 for as long as any other node has the volume, with a time Seen that is
// new: a person is sent to a node that has nothing to do with it, and the one that may write is not named.
func TestHostileElsewhereNamesTheNodeOfTheLatestList(t *testing.T) {
	inListingBubble(t, func(b *bubble, s *array) {
		b.node("node2", "id-node2")
		b.node("node3", "id-node3")
		b.attach("v", "node1")
		b.pass(time.Second)
		s.put("v", "id-node2")
		b.within(3*time.Minute, "written", func() bool { return b.elsewhere("v", "node1") == "node2 id-node2" })
		s.move("v", "id-node2", "id-node3")
		b.pass(2 * time.Hour)
		if got := b.elsewhere("v", "node1"); got != "node3 id-node3" {
			t.Errorf("two hours of lists name node3, and the annotation, seen %v ago, %q", seenAgo(b), got)
		}
	})
}

func seenAgo(b *bubble) time.Duration {
	e, _ := kube.ElsewhereOf(b.attachment("v", "node1"), time.Now())
	return time.Since(e.Seen)
}

// The volume is listed at node2 too, and its detach from node1 fails, which is what such a volume does. A person takes it from node2 at the storage, and
// each list says so. The annotation stays, and gets a new time Seen, as if a list had shown it: explain names a second writer that is none.
func TestHostileElsewhereEndsWithTheListWhileTheDetachFails(t *testing.T) {
	inListingBubble(t, func(b *bubble, s *array) {
		b.node("node2", "id-node2")
		b.attach("v", "node1")
		b.pass(time.Second)
		s.put("v", "id-node2")
		b.within(3*time.Minute, "written", func() bool { return b.elsewhere("v", "node1") == "node2 id-node2" })
		b.answers(func(context.Context, call) error { return errors.New("the array is in maintenance") })
		b.detach("v", "node1")
		b.pass(time.Minute)
		s.take("v", "id-node2")
		b.pass(3 * time.Hour)
		if got := b.elsewhere("v", "node1"); got != " " {
			t.Errorf("three hours of lists have the volume at node1 only, and the annotation, seen %v ago, says %q", seenAgo(b), got)
		}
	})
}
