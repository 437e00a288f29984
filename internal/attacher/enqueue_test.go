package attacher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/testing/fixture"
)

// countedQueue counts how often each key is added.
type countedQueue struct {
	workqueue.TypedRateLimitingInterface[publication.Key]
	added map[publication.Key]int
}

func (q countedQueue) Add(key publication.Key) { q.added[key]++ }

// An event adds a key once, whatever number of its attachments have it. If a worker took it between two additions, it would be decided on
// twice, and a request that fails would be repeated at once; whether it does depends on the scheduler, and a seed of the simulation would not
// be the same run each time.
func TestEventAddsEachKeyOnce(t *testing.T) {
	pv := fixture.PersistentVolume("v", bubbleDriver, "v")
	for name, event := range map[string]func(a *Attacher, va *storagev1.VolumeAttachment){
		"PersistentVolume changed":   func(a *Attacher, _ *storagev1.VolumeAttachment) { a.volumeChanged(nil, pv) },
		"PersistentVolume deleted":   func(a *Attacher, _ *storagev1.VolumeAttachment) { a.volumeDeleted(pv) },
		"VolumeAttachment deleted":   func(a *Attacher, va *storagev1.VolumeAttachment) { a.attachmentDeleted(va) },
		"all are processed at start": func(a *Attacher, _ *storagev1.VolumeAttachment) { a.enqueueAll() },
		"the key is outdated": func(a *Attacher, _ *storagev1.VolumeAttachment) {
			a.rekey(publication.Key{Volume: "v", NodeID: "id-node-a"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.api.put("persistentvolumes", pv)
				b.attach("v", "node-a")
				b.attach("v", "node-b")
				clean := b.create()
				warm, cold := context.WithCancel(t.Context())
				defer func() { cold(); b.attacher.shutDown(); clean() }()
				b.attacher.Warm(warm)
				b.pass(time.Second)
				counted := countedQueue{b.attacher.queue, map[publication.Key]int{}}
				b.attacher.queue = counted
				b.attacher.running.Store(true)
				event(b.attacher, b.attachment("v", "node-a"))
				if counted.added[publication.Key{Volume: "v"}] != 1 {
					t.Errorf("added: %v, want the volume once", counted.added)
				}
				for key, n := range counted.added {
					if n != 1 {
						t.Errorf("%+v was added %d times", key, n)
					}
				}
			})
		})
	}
}
