package nodeagent

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/testing/wait"
)

// histories is an API server that adds to the resource versions of its Nodes until etcd is restored from a backup: from
// then on it returns the true versions.
type histories struct {
	next http.RoundTripper

	mu sync.Mutex
	// Under mu:
	ahead   int64
	watches []io.Closer
	writes  int
}

var versions = regexp.MustCompile(`"resourceVersion":"(\d+)"`)

func shift(text []byte, by int64) []byte {
	return versions.ReplaceAllFunc(text, func(found []byte) []byte {
		number, err := strconv.ParseInt(string(versions.FindSubmatch(found)[1]), 10, 64)
		if err != nil || number == 0 {
			return found
		}
		return fmt.Appendf(nil, `"resourceVersion":"%d"`, number+by)
	})
}

func (h *histories) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, "/nodes") {
		return h.next.RoundTrip(r)
	}
	h.mu.Lock()
	by := h.ahead
	if r.Method == http.MethodPatch {
		h.writes++
	}
	h.mu.Unlock()
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	query := r.URL.Query()
	if at, err := strconv.ParseInt(query.Get("resourceVersion"), 10, 64); err == nil && at > 0 {
		query.Set("resourceVersion", strconv.FormatInt(at-by, 10))
		r.URL.RawQuery = query.Encode()
	}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = shift(body, -by)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	reply, err := h.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	reply.ContentLength = -1
	reply.Header.Del("Content-Length")
	if query.Has("watch") {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.watches = append(h.watches, reply.Body)
	}
	lines, told := io.Pipe()
	body := reply.Body
	go func() {
		defer body.Close()
		reader := bufio.NewReader(body)
		for {
			line, err := reader.ReadBytes('\n')
			if _, gone := told.Write(shift(line, by)); gone != nil {
				return
			}
			if err != nil {
				_ = told.CloseWithError(err)
				return
			}
		}
	}()
	reply.Body = lines
	return reply, nil
}

// putBack ends the history; change is what the backup lacks.
func (h *histories) putBack(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ahead = 0
	change()
	for _, watch := range h.watches {
		_ = watch.Close()
	}
}

// TestEtcdRestoredFromBackup: the Node's versions are lower than those already seen, and it lacks what was written
// since the backup.
func TestEtcdRestoredFromBackup(t *testing.T) {
	for name, written := range map[string]bool{"seen by the watch alone": false, "seen by a write": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			wire := &histories{ahead: 1_000_000}
			w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper { wire.next = next; return wire })
			l := w.live()
			other := w.volume("other")
			wire.putBack(func() {
				_, err := w.admin.CoreV1().Nodes().Patch(w.ctx, w.name, types.MergePatchType, []byte(`{"status":{"volumesInUse":[]}}`), metav1.PatchOptions{}, "status")
				must(t, err)
			})
			if written {
				pod := w.pod("second", "other")
				w.bringUp(l.agent, pod, other)
			}
			w.untilInUse(l.handle)
			l.agent.RemovePod(l.pod.UID)
			w.untilNotInUse(l.handle)
			wire.mu.Lock()
			defer wire.mu.Unlock()
			if wire.writes > 30 {
				t.Errorf("%d writes of the Node: one after another, without a back-off", wire.writes)
			}
		})
	}
}

// TestConflictingNodeWritesBackOff: every write of the Node conflicts with another one.
func TestConflictingNodeWritesBackOff(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	writes, enough := 0, make(chan struct{})
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if body := r.Body; r.Method == http.MethodPatch && body != nil {
				raw, err := io.ReadAll(body)
				if err != nil {
					return nil, err
				}
				if bytes.Contains(raw, []byte("volumesInUse")) {
					mu.Lock()
					writes++
					count := writes
					mu.Unlock()
					if count == 6 {
						close(enough)
					}
					if count <= 6 { // another writer is faster
						_, err := w.admin.CoreV1().Nodes().Patch(w.ctx, w.name, types.MergePatchType,
							fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/n":"%d"}}}`, count), metav1.PatchOptions{})
						if err != nil {
							return nil, err
						}
					}
				}
				r = r.Clone(r.Context())
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
			}
			return next.RoundTrip(r)
		})
	})
	handle := w.volume("data")
	log := &lines{}
	agent, _ := w.agent(func(c *Config) { c.Logger = log.logger() })
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	wait.For(t, "enough failures", enough)
	w.bringUp(agent, pod, handle)
	// Each second conflict in a row ends a try, and the next one waits.
	if failures := len(log.with("Failed to update status.volumesInUse, retrying")); failures < 3 {
		t.Errorf("%d back-offs for %d writes that came too late", failures, 6)
	}
}

// TestPodMissingFromStaleListKeepsItsVolumes: an API server that does not stream lists, with a watch cache from before
// the pod.
func TestPodMissingFromStaleListKeepsItsVolumes(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			if !strings.HasSuffix(r.URL.Path, "/pods") || r.Method != http.MethodGet {
				return next.RoundTrip(r)
			}
			answer := func(code int, object runtime.Object) (*http.Response, error) {
				raw, err := runtime.Encode(jsonCodec, object)
				return &http.Response{
					StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(raw)), Request: r,
				}, err
			}
			switch {
			case query.Has("sendInitialEvents"):
				return answer(http.StatusUnprocessableEntity, &metav1.Status{
					Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
				})
			case query.Get("resourceVersion") == "0":
				return answer(http.StatusOK, &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
			default:
				return next.RoundTrip(r)
			}
		})
	})
	agent, _ := w.agent()
	go agent.FollowPods(w.ctx)
	wait.Until(w, "all pods were set", func() bool {
		agent.pods.mu.Lock()
		defer agent.pods.mu.Unlock()
		return agent.pods.followed
	})
	w.mounted(agent, l.pod)
	if calls := w.driver.Made(); slices.Contains(calls, "Unpublish data") {
		t.Errorf("the volume of a pod that lives was taken down: %v", calls)
	}
}
