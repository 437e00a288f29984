package nodeagent

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// idle is an agent that does not run and reaches no API server.
func idle(t *testing.T) *Agent {
	t.Helper()
	agent, err := New(idleConfig(t))
	must(t, err)
	t.Cleanup(func() { must(t, agent.close()) })
	return agent
}

func idleConfig(t *testing.T) Config {
	t.Helper()
	return Config{NodeName: "n", Root: shortDir(t), RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}, BootID: "b"}
}

// shortDir is short enough for sockets to lie below it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bn") //nolint:usetesting // sockets lie below it
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

func TestFailedNewLeavesNoGoroutine(t *testing.T) {
	taken := idle(t)
	before := runtime.NumGoroutine()
	for range 20 {
		_, err := New(Config{NodeName: "n", Root: taken.root.Path("."), RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}, BootID: "b"})
		if !errors.Is(err, mount.ErrLocked) {
			t.Fatalf("a second agent: %v, want %v", err, mount.ErrLocked)
		}
	}
	wait.Until(t, "the goroutines of twenty failures have ended", func() bool { return runtime.NumGoroutine() <= before+5 })
}

// registrar is a driver of which only the registration is used, served like node-driver-registrar does: beside the
// driver, in its own process, with the driver's socket as the endpoint. The socket is below plugins_registry.
func (w *world) registrar(socket string, plugin *registration.PluginInfo) *csidriver.Driver {
	w.Helper()
	r := csidriver.New(w.TB, socket)
	r.Address, r.Plugin = filepath.Join(w.root, plugins.RegistryDir, socket), plugin
	r.Start()
	return r
}

// behind is a plugin whose driver is the world's, at its own socket outside the registry.
func (w *world) behind(version string) *registration.PluginInfo {
	w.Helper()
	endpoint := filepath.Join(w.root, "plugins", w.driverName(), "csi.sock")
	if _, err := os.Lstat(endpoint); err != nil {
		w.driver.Listen(endpoint)
	}
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: w.driverName(), Endpoint: endpoint, SupportedVersions: []string{version},
	}
}

// TestReRegisterOnAnotherSocket: the registrar comes back with the driver at another socket
// (Test_Run_Positive_ReRegister); volumes are worked on through that one from then on.
func TestReRegisterOnAnotherSocket(t *testing.T) {
	w := newWorld(t, noAttach)
	w.driver.Stop()
	first := w.registrar("reg.sock", w.behind("1.0.0"))
	moved := w.newDriver(w.driverName())
	moved.Address = filepath.Join(w.root, "plugins", "moved.sock")
	agent, _ := w.agent(func(c *Config) { c.MountPoints = moved.MountPoints })
	if status := first.Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	first.Stop()
	moved.Start()
	plugin := w.behind("1.0.0")
	plugin.Endpoint = moved.Address
	if status := w.registrar("reg.sock", plugin).Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	w.volume("data")
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	if calls := w.driver.Made(); len(calls) > 0 {
		t.Errorf("called at the old socket: %v", calls)
	}
	if calls := moved.Made(); !slices.Contains(calls, "Publish data") {
		t.Errorf("called at the new socket: %v", calls)
	}
}

// TestCallSurvivesUnregistration: the registrar ends, or names another endpoint, while the driver executes a call. The
// call is not interrupted, and not repeated.
func TestCallSurvivesUnregistration(t *testing.T) {
	for name, change := range map[string]func(w *world, r *csidriver.Driver) (again *csidriver.Driver){
		"the registrar ends": func(w *world, r *csidriver.Driver) *csidriver.Driver {
			r.Stop()
			w.untilNode("the driver is forgotten", func(n *corev1.Node) bool {
				return n.Annotations["csi.volume.kubernetes.io/nodeid"] == ""
			})
			return nil
		},
		"the driver is at another endpoint": func(w *world, r *csidriver.Driver) *csidriver.Driver {
			plugin := w.behind("1.1.0")
			link := filepath.Join(w.root, "plugins", "link.sock")
			must(w, os.Symlink(plugin.Endpoint, link))
			plugin.Endpoint = link
			return w.registrar("next.sock", plugin)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach)
			w.driver.Stop()
			w.volume("data")
			first := w.registrar("reg.sock", w.behind("1.0.0"))
			agent, _ := w.agent()
			first.Registered()
			begun, goOn := make(chan struct{}), make(chan struct{})
			w.driver.SetBefore(func(method, _ string, attempt int) error {
				if method == "Stage" && attempt == 1 {
					close(begun)
					<-goOn
				}
				return nil
			})
			client, err := agent.plugins.Client(w.driverName())
			must(t, err)
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			wait.For(t, "the call to arrive", begun)
			again := change(w, first)
			if again != nil {
				again.Registered()
			}
			close(goOn)
			if again == nil {
				w.registrar("reg.sock", w.behind("1.0.0")).Registered()
			}
			w.mounted(agent, pod)
			if diff := cmp.Diff([]string{"Stage data", "Publish data"}, w.driver.Made()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			wait.Until(w, "the earlier connection is closed", func() bool {
				_, err := client.Capabilities(w.ctx)
				return status.Code(err) == codes.Canceled
			})
		})
	}
}
