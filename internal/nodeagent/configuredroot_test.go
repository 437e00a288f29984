package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// linked is a world whose root is also reached by a symbolic link, and what drivers were called with.
type linked struct {
	*world
	link  string
	mu    sync.Mutex
	paths []string // "Stage PATH" and so on, in their order
}

func newLinked(t *testing.T) *linked {
	t.Helper()
	w := &linked{world: newWorld(t, noAttach)}
	w.link = filepath.Join(csidriver.SocketDir(t), "link")
	must(t, os.Symlink(w.root, w.link))
	w.driver.Intercept(func(call string, request any, do func() (any, error)) (any, error) {
		w.mu.Lock()
		switch r := request.(type) {
		case *csispec.NodeStageVolumeRequest:
			w.called("Stage", r.StagingTargetPath)
		case *csispec.NodePublishVolumeRequest:
			w.called("Publish", r.StagingTargetPath, r.TargetPath)
		case *csispec.NodeUnpublishVolumeRequest:
			w.called("Unpublish", r.TargetPath)
		case *csispec.NodeUnstageVolumeRequest:
			w.called("Unstage", r.StagingTargetPath)
		}
		w.mu.Unlock()
		return do()
	})
	return w
}

// called records by which root the paths of a call lead.
func (w *linked) called(call string, paths ...string) {
	for _, path := range paths {
		switch {
		case path == "":
		case strings.HasPrefix(path, w.link+"/") && filepath.Clean(path) == path:
			call += " link"
		case strings.HasPrefix(path, w.root+"/"):
			call += " resolved"
		default:
			call += " " + path
		}
	}
	w.paths = append(w.paths, call)
}

// agentAt starts an agent with a root; the kernel's mount table has resolved paths.
func (w *linked) agentAt(root string) (agent *Agent, stop func()) {
	w.Helper()
	return w.agent(func(c *Config) {
		c.Root = root
		c.MountPoints = func() ([]string, error) {
			points, err := w.driver.MountPoints()
			for i, point := range points {
				if rest, ok := strings.CutPrefix(point, w.link); ok {
					points[i] = w.root + rest
				}
			}
			return points, err
		}
	})
}

func (w *linked) want(want ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.paths, want) {
		w.Errorf("paths in the requests: %q, want %q", w.paths, want)
	}
	w.paths = nil
}

// TestDriversGetTheRootAsConfigured: a driver in a container has no other path, and kubelet sends no other. What it was called with once
// is repeated until the end, whatever the next agent is configured with.
func TestDriversGetTheRootAsConfigured(t *testing.T) {
	w := newLinked(t)
	handle := w.volume("data")
	agent, stop := w.agentAt(w.link + "/./")
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.want("Stage link", "Publish link link")
	stop()
	agent, _ = w.agentAt(w.root)
	second := w.pod("second", "data")
	for _, p := range []*corev1.Pod{pod, second} {
		agent.SetPod(p)
		w.mounted(agent, p)
	}
	w.want("Publish link resolved")
	for _, target := range agent.volumes.tasks.statsTargets(string(w.unique(handle))) {
		w.mu.Lock()
		w.called("Stats", target.path)
		w.mu.Unlock()
	}
	w.want("Stats link", "Stats resolved")
	w.ends(agent, handle, pod, second)
	w.want("Unpublish link", "Unpublish resolved", "Unstage link")
}

// TestRecordsOfTheResolvedRoot: earlier versions called the driver with the resolved path, which their records do not have.
func TestRecordsOfTheResolvedRoot(t *testing.T) {
	w := newLinked(t)
	handle := w.volume("data")
	agent, stop := w.agentAt(w.root)
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.want("Stage resolved", "Publish resolved resolved")
	stop()
	records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*"))
	must(t, err)
	for _, record := range records {
		raw, err := os.ReadFile(record)
		must(t, err)
		if strings.Contains(string(raw), `"root"`) {
			t.Errorf("earlier versions do not read the record %s", raw)
		}
	}
	w.bootID = "boot-2" // every call is repeated
	agent, _ = w.agentAt(w.link)
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.want("Stage resolved", "Publish resolved resolved")
	w.ends(agent, handle, pod)
	w.want("Unpublish resolved", "Unstage resolved")
	next := w.pod("next", "data")
	agent.SetPod(next)
	w.mounted(agent, next)
	w.want("Stage link", "Publish link link")
}

// ends removes the pods one after the other, and waits until the volume is unstaged.
func (w *linked) ends(agent *Agent, handle string, pods ...*corev1.Pod) {
	w.Helper()
	for _, pod := range pods {
		agent.RemovePod(pod.UID)
		w.unmounted(agent, pod)
	}
	wait.Until(w, "volume "+handle+" is unstaged", func() bool {
		w.driver.Lock()
		defer w.driver.Unlock()
		return w.driver.Staged[handle] == ""
	})
}
