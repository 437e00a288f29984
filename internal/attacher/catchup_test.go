package attacher

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	clienttesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/kube"
)

// The previous leader detached a volume, and its VolumeAttachment is gone. The watch cache of
// the new leader still shows it, as it was before it was attached: that must not be attached
// again. Nor may one that came and went since, and that the cache has yet to show.
func TestNewLeaderWaitsForTheCache(t *testing.T) {
	about := func(b *memoryWorld) func(*storagev1.VolumeAttachment) {
		return func(va *storagev1.VolumeAttachment) {
			va.Finalizers = []string{kube.AttacherFinalizer(b.driver.name)}
			va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-node1"}
		}
	}
	attached := func(va *storagev1.VolumeAttachment) { va.Status.Attached = true }
	for name, tt := range map[string]struct {
		before, since func(b *memoryWorld)
		want          []string // calls
	}{
		"ended": {
			before: func(b *memoryWorld) { b.attachment("v", about(b)); b.attachment("z", about(b), attached) },
			since:  func(b *memoryWorld) { b.api.end(resourceAttachments, "va-v") },
		},
		"ended, and there is no other": {
			before: func(b *memoryWorld) { b.attachment("v", about(b)) },
			since:  func(b *memoryWorld) { b.api.end(resourceAttachments, "va-v") },
		},
		"came and went": {
			before: func(b *memoryWorld) { b.attachment("z", about(b), attached) },
			since:  func(b *memoryWorld) { b.attachment("v", about(b)); b.api.end(resourceAttachments, "va-v") },
		},
		"came and went, and there is no other": {
			before: func(*memoryWorld) {},
			since:  func(b *memoryWorld) { b.attachment("v", about(b)); b.api.end(resourceAttachments, "va-v") },
		},
		"still there": {
			before: func(b *memoryWorld) { b.attachment("v", about(b)) },
			since:  func(b *memoryWorld) { b.attachment("z", about(b), attached) },
			want:   []string{"Publish id-node1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMemoryWorld(t)
				tt.before(b)
				b.api.hold()
				tt.since(b)
				stop := b.start()
				defer stop()
				time.Sleep(time.Minute)
				if calls := b.driver.received(); len(calls) > 0 {
					t.Errorf("calls with a cache that lags: %v", calls)
				}
				b.api.proceed()
				b.attachment("other", attached, about(b)) // an event, where nothing could be marked
				time.Sleep(time.Minute)
				if diff := cmp.Diff(tt.want, b.driver.received()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A leader that gets no list of VolumeAttachments asks until it gets one, and logs each
// reason once.
func TestListAtTakeOverFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryWorld(t)
		va := b.attachment("v")
		why := errors.New("etcdserver: request timed out")
		b.api.refuse = func(action clienttesting.Action) error {
			if list, ok := action.(clienttesting.ListActionImpl); ok && list.GetListOptions().Limit == 1 {
				return why
			}
			return nil
		}
		stop := b.start()
		defer stop()
		time.Sleep(time.Minute)
		b.api.mu.Lock()
		why = errors.New("connection refused")
		b.api.mu.Unlock()
		time.Sleep(time.Minute)
		const message = "Failed to list VolumeAttachments after winning the lease, retrying"
		if failed := b.log.of(message); len(failed) != 2 || failed[0]["error"] == failed[1]["error"] {
			t.Errorf("want one line for each reason, got %v", failed)
		}
		if calls := b.driver.received(); len(calls) > 0 {
			t.Errorf("calls without a list: %v", calls)
		}
		b.api.mu.Lock()
		b.api.refuse = nil
		b.api.mu.Unlock()
		time.Sleep(writeRetryMax + time.Second)
		if !b.isAttached(va) {
			t.Error("not attached although the API server answers again")
		}
	})
}

// A leader that is told to stop while it waits for a list stops.
func TestStopWhileTheListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryWorld(t)
		b.api.refuse = func(action clienttesting.Action) error {
			if list, ok := action.(clienttesting.ListActionImpl); ok && list.GetListOptions().Limit == 1 {
				return errors.New("connection refused")
			}
			return nil
		}
		stop := b.start()
		time.Sleep(time.Minute)
		begun := time.Now()
		stop()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("stopped after %v", took)
		}
	})
}
