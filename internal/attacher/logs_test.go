package attacher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/testing/wait"
)

// line is one line of the log.
type line map[string]any

// logged is all that an attacher has logged.
type logged struct {
	mu    sync.Mutex
	lines []line
	text  strings.Builder
}

// logs has the attacher that is started next log here, at verbosity 1.
func (w *world) logs() *logged {
	l := &logged{}
	w.logger = funcr.NewJSON(func(text string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		one := line{}
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			w.t.Errorf("log %s: %v", text, err)
		}
		fmt.Fprintln(&l.text, text)
		l.lines = append(l.lines, one)
	}, funcr.Options{Verbosity: 1})
	return l
}

// of gives the lines with that message.
func (l *logged) of(message string) (found []line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.lines {
		if one["msg"] == message {
			found = append(found, one)
		}
	}
	return found
}

// names are the values under which people look for a volume.
func (l line) names() map[string]any {
	found := map[string]any{}
	for _, key := range []string{"volume", "handle", "driver", "node", "attachment", "claim"} {
		if value, ok := l[key]; ok {
			found[key] = value
		}
	}
	return found
}

// claimed binds a volume to default/name.
func claimed(name string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: name}
	}
}

// Each call is logged with all names of its objects, so that any of them can be searched for, and no line shows a zero
// time.
func TestLogsNameTheVolume(t *testing.T) {
	w := newWorld(t)
	out := w.logs()
	waits := make(chan struct{})
	w.driver.SetAnswer(func(ctx context.Context, _ call, nth int) (map[string]string, error) {
		if nth > 0 {
			return nil, nil
		}
		select { // the attachment waits for this call
		case <-waits:
		case <-ctx.Done():
		}
		return nil, status.Error(codes.Internal, "array is away")
	})
	w.node("node1")
	w.volume("pv1", claimed("data"))
	w.start()
	va := w.attachment("pv1", "node1")
	wait.Until(t, "a wait is logged", func() bool { return len(out.of("Waiting to attach volume")) > 0 })
	close(waits)
	w.until(va, "attached", isAttached)
	w.delete(va)
	w.until(va, "gone", isGone)
	w.stop()

	want := map[string]any{
		"volume": w.name("pv1"), "handle": w.name("pv1"), "driver": w.driver.Name, "node": w.name("node1"), "attachment": va,
		"claim": map[string]any{"name": "data", "namespace": "default"},
	}
	for message, times := range map[string]int{
		"Attaching volume": 2, "Failed to attach volume": 1, "Volume attached": 1, "Detaching volume": 1, "Volume detached": 1,
	} {
		lines := out.of(message)
		if len(lines) != times {
			t.Errorf("%q was logged %d times, want %d", message, len(lines), times)
		}
		for _, one := range lines {
			if diff := cmp.Diff(want, one.names()); diff != "" {
				t.Errorf("%q names (-want +got):\n%s", message, diff)
			}
		}
	}
	for _, one := range append(out.of("Waiting to attach volume"), out.of("Waiting to detach volume")...) {
		if one["attachment"] == va {
			if diff := cmp.Diff(want, one.names()); diff != "" {
				t.Errorf("a wait names (-want +got):\n%s", diff)
			}
		}
	}
	if strings.Contains(out.text.String(), "0001-01-01") {
		t.Errorf("a time that is none was logged:\n%s", out.text.String())
	}
}

// A driver that does not answer shows in the status and in the log by its name, with the call, the node, the timeout that ran
// out and the next attempt, not as a context's deadline.
func TestHungCallIsNamed(t *testing.T) {
	const timeout = 300 * time.Millisecond
	for name, tt := range map[string]struct {
		method, rpc, failed string
		has                 func(string) func(*storagev1.VolumeAttachment) bool
		attached            bool
	}{
		"attach": {"Publish", "ControllerPublishVolume", "Failed to attach volume", hasAttachError, false},
		"detach": {"Unpublish", "ControllerUnpublishVolume", "Failed to detach volume", hasDetachError, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			out := w.logs()
			w.driver.SetAnswer(func(ctx context.Context, c call, _ int) (map[string]string, error) {
				if c.Method == tt.method {
					<-ctx.Done()
				}
				return nil, ctx.Err()
			})
			w.node("node1")
			w.volume("pv1")
			var change []func(*storagev1.VolumeAttachment)
			if tt.attached {
				change = append(change, withFinalizer(w, "id-node1"), isAttachedAlready)
			}
			va := w.attachment("pv1", "node1", change...)
			w.start(func(c *Config) { c.Timeout, c.RetryStart, c.RetryMax = timeout, time.Hour, time.Hour })
			if tt.attached {
				w.delete(va)
			}
			stored := w.until(va, "failed", tt.has(tt.rpc))
			w.stop()

			problem := stored.Status.AttachError
			if tt.attached {
				problem = stored.Status.DetachError
			} else if code := problem.ErrorCode; code == nil || *code != int32(codes.DeadlineExceeded) {
				t.Errorf("error code %v, want DeadlineExceeded", code)
			}
			text := fmt.Sprintf(`CSI driver %q did not answer %s for node %q within 300ms (DeadlineExceeded)`, w.driver.Name, tt.rpc, w.name("node1"))
			next := regexp.MustCompile("^" + regexp.QuoteMeta(text) + "; next attempt at (.*)$").FindStringSubmatch(problem.Message)
			if next == nil {
				t.Fatalf("message %q, want %q and the next attempt", problem.Message, text)
			}
			at, err := time.Parse(time.RFC3339, next[1])
			// The pause is shortened by up to a fifth, and the write may be late. One time is rounded up to the second, the other down.
			if wait := at.Sub(problem.Time.Time); err != nil || wait < 45*time.Minute || wait > time.Hour+time.Second {
				t.Errorf("the next attempt is at %s, %v after the failure (%v)", next[1], wait, err)
			}
			lines := out.of(tt.failed)
			if len(lines) != 1 {
				t.Fatalf("%q was logged %d times", tt.failed, len(lines))
			}
			if one := lines[0]; one["error"] != text || one["call"] != tt.rpc || one["nextAttempt"] != next[1] {
				t.Errorf("logged %v", one)
			}
		})
	}
}

// The driver's own message about a deadline is stored unchanged.
func TestDriversOwnDeadlineIsKept(t *testing.T) {
	w := newWorld(t)
	w.driver.SetAnswer(failing("Publish", 1<<30, status.Error(codes.DeadlineExceeded, "the array took too long")))
	w.node("node1")
	w.volume("pv1")
	w.start()
	stored := w.untilRefused(w.attachment("pv1", "node1"), "took too long")
	if got, want := stored.Status.AttachError.Message, "rpc error: code = DeadlineExceeded desc = the array took too long"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// A request to the API server that fails is logged with the volume's names, too.
func TestFailedWriteNamesTheVolume(t *testing.T) {
	w := newWorld(t)
	out := w.logs()
	w.node("node1")
	w.volume("pv1", claimed("data"))
	va := w.attachment("pv1", "node1")
	var refuse sync.Once
	w.start(w.through(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			var err error
			// Not the mark for the watch cache, which patches the first VolumeAttachment of any test.
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, va+"/status") {
				refuse.Do(func() { err = errors.New("no way to the API server") })
			}
			if err != nil {
				return nil, err
			}
			return next.RoundTrip(r)
		})
	}))
	w.until(va, "attached", isAttached)
	w.stop()
	lines := out.of("API request failed, retrying")
	if len(lines) == 0 {
		t.Fatalf("no failed request was logged:\n%s", out.text.String())
	}
	want := map[string]any{"volume": w.name("pv1"), "handle": w.name("pv1"), "driver": w.driver.Name, "claim": map[string]any{"name": "data", "namespace": "default"}}
	if diff := cmp.Diff(want, lines[0].names()); diff != "" {
		t.Errorf("the failed request names (-want +got):\n%s", diff)
	}
	if text := fmt.Sprint(lines[0]["error"]); !strings.Contains(text, va) || !strings.Contains(text, w.name("node1")) {
		t.Errorf("the error names neither attachment nor node: %s", text)
	}
}
