package attacher

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The previous leader detached a volume, and its VolumeAttachment is gone. The watch cache of
// the new leader still shows it, as it was before it was attached: that must not be attached
// again. Nor may one that came and went since, and that the cache has yet to show.
func TestNewLeaderWaitsForTheCache(t *testing.T) {
	for name, tt := range map[string]struct {
		before, since func(b *bubble)
		want          []string // calls
	}{
		"ended": {
			before: func(b *bubble) { b.attach("v", "node1", worked); b.attach("z", "node1", worked, attached) },
			since:  func(b *bubble) { b.end("v", "node1") },
		},
		"ended, and there is no other": {
			before: func(b *bubble) { b.attach("v", "node1", worked) },
			since:  func(b *bubble) { b.end("v", "node1") },
		},
		"came and went": {
			before: func(b *bubble) { b.attach("z", "node1", worked, attached) },
			since:  func(b *bubble) { b.attach("v", "node1", worked); b.end("v", "node1") },
		},
		"came and went, and there is no other": {
			before: func(*bubble) {},
			since:  func(b *bubble) { b.attach("v", "node1", worked); b.end("v", "node1") },
		},
		"still there": {
			before: func(b *bubble) { b.attach("v", "node1", worked) },
			since:  func(b *bubble) { b.attach("z", "node1", worked, attached) },
			want:   []string{"Publish id-node1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				tt.before(b)
				b.api.hold()
				tt.since(b)
				stop := b.start()
				defer stop()
				time.Sleep(time.Minute)
				if calls := b.received(""); len(calls) > 0 {
					t.Errorf("calls with a cache that lags: %v", calls)
				}
				b.api.proceed()
				b.attach("other", "node1", worked, attached) // an event, where nothing could be marked
				time.Sleep(time.Minute)
				if diff := cmp.Diff(tt.want, b.received("")); diff != "" {
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
		b := newBubble(t)
		b.attach("v", "node1")
		why := errors.New("etcdserver: request timed out")
		b.api.refuse = func(r *http.Request) error {
			if r.URL.Query().Get("limit") == "1" {
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
		if calls := b.received(""); len(calls) > 0 {
			t.Errorf("calls without a list: %v", calls)
		}
		b.api.mu.Lock()
		b.api.refuse = nil
		b.api.mu.Unlock()
		time.Sleep(writeRetryMax + time.Second)
		if !b.isAttached("v", "node1") {
			t.Error("not attached although the API server answers again")
		}
	})
}

// A leader that is stopped while it waits for a list stops.
func TestStopWhileTheListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.api.refuse = func(r *http.Request) error {
			if r.URL.Query().Get("limit") == "1" {
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
