package attacher

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// inListingBubble is inBubble with a driver that lists what an array holds, each minute.
func inListingBubble(t *testing.T, test func(b *bubble, s *array)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.driver.ControllerServices = canList
		s := attachArray(b.driver)
		b.answers(func(_ context.Context, c call) error { s.serve(c); return nil })
		defer b.start(func(c *Config) { c.ReconcileSync = time.Minute })()
		b.pass(time.Second)
		test(b, s)
	})
}

func (b *bubble) lists() int {
	b.driver.Lock()
	defer b.driver.Unlock()
	return b.driver.Lists
}

// A machine reboots and loses its volumes at the storage: the list that its new boot asks for and the one a pause later confirm it. What belay writes
// on a VolumeAttachment meanwhile is no change of the attachment.
func TestVolumesLostAtAReboot(t *testing.T) {
	for _, sincePass := range []time.Duration{time.Second, 20 * time.Second, 50 * time.Second} {
		t.Run(fmt.Sprint(sincePass), func(t *testing.T) {
			inListingBubble(t, func(b *bubble, s *array) {
				const volumes = 30
				for i := range volumes {
					b.attach(fmt.Sprint("v", i), "node1", withBoot("boot-1"))
				}
				b.pass(2*time.Minute - time.Second + sincePass) // a list was made that long ago
				for i := range volumes {
					s.take(fmt.Sprint("v", i), "id-node1")
				}
				before := len(b.received(""))
				for i := range volumes {
					b.annotate(fmt.Sprint("v", i), "node1", kube.BootIDAnnotation, "boot-2")
				}
				b.pass(30 * time.Second) // between the two lists
				for i := range volumes {
					b.annotate(fmt.Sprint("v", i), "node1", kube.SystemUUIDAnnotation, "machine")
				}
				b.pass(46 * time.Second)
				// Ten drifts are repaired before it was seen to help.
				if published := len(b.received("")) - before; published < firstMends {
					t.Errorf("%d volumes were published again in 76 s, want %d or more", published, firstMends)
				}
			})
		})
	}
}

// Thousands of new boots ask for few lists: none sooner than a quarter of the pause after the one before.
func TestNewBootsAskForFewLists(t *testing.T) {
	inListingBubble(t, func(b *bubble, _ *array) {
		b.attach("v", "node1", withBoot("boot-0"))
		b.pass(time.Minute)
		before := b.lists()
		for i := range 600 {
			b.annotate("v", "node1", kube.BootIDAnnotation, fmt.Sprint("boot-", i+1))
			b.pass(time.Second)
		}
		if lists := b.lists() - before; lists < 20 || lists > 41 {
			t.Errorf("%d lists in ten minutes with a new boot each second, want about 40", lists)
		}
	})
}

// withBoot makes an attachment with a machine's boot, as the controller records it.
func withBoot(id string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.Annotations = map[string]string{kube.BootIDAnnotation: id} }
}
