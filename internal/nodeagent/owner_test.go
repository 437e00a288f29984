package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// untouched fails if the driver was called since, or the volume left the list.
func (w *world) untouched(l life, calls []string) {
	w.Helper()
	if diff := cmp.Diff(calls, w.driver.Made()); diff != "" {
		w.Errorf("calls (-before +after):\n%s", diff)
	}
	if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
		w.Error("S7: the volume is not in use any more")
	}
}

func (w *world) config() Config {
	return Config{NodeName: w.name, Root: w.root, RESTConfig: w.nodeID, BootID: w.bootID, MountPoints: w.driver.MountPoints, Logger: testLogger(w.TB)}
}

// TestRestartUnderAnotherNodeName: the machine was renamed. Nothing is touched, even if an earlier version recorded no
// owner.
func TestRestartUnderAnotherNodeName(t *testing.T) {
	for name, forget := range map[string]bool{"recorded": false, "by an earlier version": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			l.stop()
			if forget {
				must(t, os.Remove(filepath.Join(w.root, ownerFile)))
			}
			calls := w.driver.Made()
			config := w.config()
			config.NodeName = "other-" + w.name
			_, err := New(config)
			refused, ok := errors.AsType[*OwnerError](err)
			if !ok || refused.RecordedNode != w.name || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), w.name) {
				t.Fatalf("New says: %v", err)
			}
			w.untouched(l, calls)
			agent, _ := w.agent()
			agent.SetPod(l.pod)
			agent.PodsSynced()
			w.mounted(agent, l.pod)
			agent.RemovePod(l.pod.UID)
			w.untilNotInUse(l.handle)
			if _, err := os.Stat(filepath.Join(w.root, ownerFile)); err != nil {
				t.Errorf("owner not recorded: %v", err)
			}
		})
	}
}

// elsewhere is what another API server says: other UIDs, and no pods.
type elsewhere struct {
	// forbidden: what tells clusters apart may not be read.
	forbidden bool
	written   atomic.Int32
}

func (e *elsewhere) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Accept", "application/json")
			if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
				e.written.Add(1)
			}
			reply, err := next.RoundTrip(r)
			if err != nil || r.URL.Query().Has("watch") {
				return reply, err
			}
			defer reply.Body.Close()
			raw, err := io.ReadAll(reply.Body)
			if err != nil {
				return nil, err
			}
			if e.forbidden && strings.Contains(r.URL.Path, "/namespaces/") {
				reply.StatusCode = http.StatusForbidden
				raw, _ = json.Marshal(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
			}
			raw = bytes.ReplaceAll(raw, []byte(`"uid":"`), []byte(`"uid":"other-`))
			reply.Body, reply.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
			reply.Header.Del("Content-Length")
			return reply, nil
		})
	})
	return config
}

// TestRestartWithKubeconfigOfAnotherCluster: nothing is touched in either cluster.
func TestRestartWithKubeconfigOfAnotherCluster(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	calls, other := w.driver.Made(), &elsewhere{}
	config := w.config()
	config.RESTConfig = other.wrap(w.nodeID)
	agent, err := New(config)
	must(t, err)
	agent.PodsSynced()
	err = agent.Run(w.ctx)
	if _, ok := errors.AsType[*OwnerError](err); !ok || !strings.Contains(err.Error(), "of another cluster") || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("Run says: %v", err)
	}
	w.untouched(l, calls)
	if n := other.written.Load(); n > 0 {
		t.Errorf("%d writes to the other cluster", n)
	}
}

// TestUnidentifiedClusterIsNotTouched: the Node is another one, and the object that identifies a cluster may not be
// read. The agent waits and reports what it waits for.
func TestUnidentifiedClusterIsNotTouched(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	calls, other := w.driver.Made(), &elsewhere{forbidden: true}
	agent, stop := w.agent(func(c *Config) { c.RESTConfig = other.wrap(w.nodeID) })
	agent.PodsSynced()
	wait.Until(w, "Ready to name what it waits for", func() bool {
		err := agent.Ready()
		return err != nil && strings.Contains(err.Error(), "cannot verify") && strings.Contains(err.Error(), "kube-system")
	})
	time.Sleep(2 * time.Second) // for what the agent must not do
	stop()
	w.untouched(l, calls)
	if n := other.written.Load(); n > 0 {
		t.Errorf("%d writes to the other cluster", n)
	}
}

// TestRestartAfterNodeWasRecreated: it has another UID, in the same cluster. The volumes stay.
func TestRestartAfterNodeWasRecreated(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	must(t, w.admin.CoreV1().Nodes().Delete(w.ctx, w.name, metav1.DeleteOptions{}))
	_, err := w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}}, metav1.CreateOptions{})
	must(t, err)
	agent, _ := w.agent()
	agent.SetPod(l.pod)
	agent.PodsSynced()
	w.untilInUse(l.handle)
	w.mounted(agent, l.pod)
	raw, err := os.ReadFile(filepath.Join(w.root, ownerFile))
	must(t, err)
	if uid := string(w.node().UID); !strings.Contains(string(raw), uid) {
		t.Errorf("owner is %s, and the Node's UID %s", raw, uid)
	}
}

// TestKilledAsItWroteTheOwner: the next agent has the same owner, so it does not write the file again, and removes what is left.
func TestKilledAsItWroteTheOwner(t *testing.T) {
	w := newWorld(t)
	w.live().stop()
	torn := filepath.Join(w.root, "belay", ".tmp-owner.json")
	must(t, os.WriteFile(torn, []byte("{"), 0o600))
	agent, err := New(w.config())
	must(t, err)
	must(t, agent.close())
	if _, err := os.Stat(torn); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", torn, err)
	}
}

// TestUnreadableOwner: the owner of the records is unknown then, and nothing is touched.
func TestUnreadableOwner(t *testing.T) {
	for name, content := range map[string]string{"torn": `{"nodeName": "n`, "empty": "", "without a name": "{}"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			l.stop()
			calls := w.driver.Made()
			must(t, os.WriteFile(filepath.Join(w.root, ownerFile), []byte(content), 0o600))
			_, err := New(w.config())
			if err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "remove "+w.root) {
				t.Fatalf("New says: %v", err)
			}
			w.untouched(l, calls)
			must(t, os.Remove(filepath.Join(w.root, ownerFile))) // the remedy
			agent, _ := w.agent()
			agent.SetPod(l.pod)
			agent.PodsSynced()
			w.mounted(agent, l.pod)
		})
	}
}

// TestVolumeIsListedInUseWithItsRoot: the annotation on which TestRestartWithAnotherRoot depends comes with the first volume, although
// what else the agent writes to the Node is refused.
func TestVolumeIsListedInUseWithItsRoot(t *testing.T) {
	w := newWorld(t)
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPatch {
				return next.RoundTrip(r)
			}
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			if !bytes.Contains(raw, []byte("volumesInUse")) {
				return nil, errors.New("no route to host")
			}
			r.Body = io.NopCloser(bytes.NewReader(raw))
			return next.RoundTrip(r)
		})
	})
	handle := w.volume("data")
	agent, _ := w.agent()
	agent.SetPod(w.pod("p", "data"))
	node := w.untilNode("the volume is in use", func(n *corev1.Node) bool {
		return slices.Contains(n.Status.VolumesInUse, w.unique(handle))
	})
	if got, want := node.Annotations[kube.VolumesRootAnnotation], w.bootID+" "+w.root; got != want {
		t.Errorf("the Node lists the volume, and its records are said to be at %q, want %q", got, want)
	}
}

// TestRestartWithAnotherRoot: according to its records every running volume would be removed from the list, and
// detached.
func TestRestartWithAnotherRoot(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	calls := w.driver.Made()
	config := w.config()
	config.Root = t.TempDir()
	agent, err := New(config)
	must(t, err)
	var other *OwnerError
	if err := agent.Run(w.ctx); !errors.As(err, &other) || !strings.Contains(err.Error(), "start it with the root directory "+w.root) {
		t.Fatalf("Run says: %v", err)
	}
	w.untouched(l, calls)
	if left, err := os.ReadDir(filepath.Join(config.Root, "belay")); err != nil || len(left) > 1 {
		t.Errorf("below the other root: %v, %v", left, err)
	}

	// After a boot nothing is mounted, so another root is accepted.
	config.BootID, config.Root = "boot-2", t.TempDir()
	agent, err = New(config)
	must(t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error)
	go func() { ended <- agent.Run(ctx) }()
	w.untilNode("the other root", func(n *corev1.Node) bool {
		return strings.HasSuffix(n.Annotations[kube.VolumesRootAnnotation], " "+config.Root)
	})
	cancel()
	must(t, <-ended)
}
