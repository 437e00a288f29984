package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

func TestDriverWithChangedNodeIDIsRegisteredAgain(t *testing.T) {
	w := newWorld(t)
	_, stop := w.agent()
	w.driver.Registered()
	stop()
	w.driver.Lock()
	w.driver.NodeInfo = &csispec.NodeGetInfoResponse{NodeId: "another"}
	w.driver.Unlock()
	w.agent()
	if status := w.driver.Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	got, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(t, err)
	if len(got.Spec.Drivers) != 1 || got.Spec.Drivers[0].NodeID != "another" || len(got.Spec.Drivers[0].TopologyKeys) > 0 {
		t.Errorf("CSINode has %+v", got.Spec.Drivers)
	}
}

// TestInvalidDriverDoesNotBlockOthers: what one driver reports about the node contradicts a label, or is refused by the
// API server.
func TestInvalidDriverDoesNotBlockOthers(t *testing.T) {
	for name, test := range map[string]struct {
		topology map[string]string
		want     string
	}{
		"contradicts a label":                {map[string]string{"kubernetes.io/hostname": "not this one"}, "detected topology value collision"},
		"is no label":                        {map[string]string{"rack": "not a value!"}, "Invalid value"},
		"is a label that a node may not set": {map[string]string{"rack.kubernetes.io/r": "r1"}, "is not allowed to modify labels"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			node := w.node()
			node.Labels = map[string]string{"kubernetes.io/hostname": w.name}
			_, err := w.admin.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
			must(t, err)
			misfit := w.startDriver("misfit.test.belay.dev")
			misfit.Lock()
			misfit.NodeInfo = &csispec.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csispec.Topology{Segments: test.topology}}
			misfit.Unlock()
			w.driver.Stop()
			w.agent()
			if status := misfit.Registered(); status.PluginRegistered || !strings.Contains(status.Error, test.want) {
				t.Errorf("the invalid driver was notified of %+v, want %q", status, test.want)
			}
			w.driver.Start()
			if status := w.driver.Registered(); !status.PluginRegistered {
				t.Errorf("not registered: %s", status.Error)
			}
			w.wantCSINode(w.node())
		})
	}
}

// TestDriverMovedToAnotherSocketStaysRegistered: it is back before its removal was processed.
func TestDriverMovedToAnotherSocketStaysRegistered(t *testing.T) {
	w := newWorld(t)
	next := w.newDriver(w.driverName())
	next.Address = filepath.Join(w.root, registryDir, "next-reg.sock")
	var agent *Agent
	var once sync.Once
	moved := make(chan bool, 1) // whether the cluster is to forget it, as of the moment when it is gone
	agent, _ = w.agent(func(c *Config) {
		c.Logger = funcr.New(func(_, line string) {
			if strings.Contains(line, "Driver unregistered") {
				once.Do(func() {
					agent.plugins.identity.mu.Lock()
					forgotten := agent.plugins.identity.gone[w.driverName()]
					agent.plugins.identity.mu.Unlock()
					next.Start()
					next.Registered()
					moved <- forgotten
				})
			}
		}, funcr.Options{})
	})
	w.driver.Registered()
	w.driver.Stop()
	if forgotten := <-moved; !forgotten {
		t.Error("the old socket's driver is forgotten only after the new one's may be known")
	}
	w.wantCSINode(w.node())
}

func TestDriverStaysRegisteredWhenNotificationFails(t *testing.T) {
	w := newWorld(t)
	var agent *Agent
	var clients []*csi.Node // the client at each notification; under the lock of plugins
	w.driver.Lock()
	w.driver.OnNotify = func() error {
		agent.plugins.mu.Lock()
		defer agent.plugins.mu.Unlock()
		if d := agent.plugins.drivers[w.driverName()]; d != nil {
			clients = append(clients, d.client)
		}
		if len(clients) == 1 {
			return errors.New("not now")
		}
		return nil
	}
	w.driver.Unlock()
	w.driver.Stop()
	agent, _ = w.agent()
	w.driver.Start()
	w.driver.Registered()
	wait.Until(w, "the plugin is notified again", func() bool {
		agent.plugins.mu.Lock()
		defer agent.plugins.mu.Unlock()
		return len(clients) > 1
	})
	if clients[0] != clients[1] {
		t.Errorf("there is a new connection, and calls on the first one were lost: %v", clients)
	}
}

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

func TestSocketRemovedWhileEventsWereLost(t *testing.T) {
	p := onlyPlugins(t, ignore)
	must(t, p.root.MakeDir(registryDir))
	stays, goes := filepath.Join(p.root.Path(registryDir), "stays"), filepath.Join(p.root.Path(registryDir), "goes")
	for _, socket := range []string{stays, goes} {
		listener, err := net.Listen("unix", socket)
		must(t, err)
		defer listener.Close()
	}
	r := p.registry
	must(t, r.open())
	defer r.watcher.close()
	defer r.queue.ShutDown()
	must(t, os.Remove(goes))
	r.relist()
	if r.sockets[stays] == 0 || r.sockets[goes] != 0 {
		t.Errorf("sockets: %v", r.sockets)
	}
}

// TestManySocketsOfOneDriverLeaveOneConnection: each makes the driver known by its name.
func TestManySocketsOfOneDriverLeaveOneConnection(t *testing.T) {
	p := onlyPlugins(t, ignore)
	r := p.registry
	var taking sync.WaitGroup
	for i := range 50 {
		taking.Go(func() {
			socket := fmt.Sprintf("/nowhere/%d", i)
			_, _ = r.replaceDriver(t.Context(), driver{name: "d", socket: socket, endpoint: socket, version: version.MustParseGeneric(fmt.Sprintf("1.%d.0", i))})
		})
	}
	taking.Wait()
	if got := p.drivers["d"].version.String(); got != "1.49.0" {
		t.Errorf("version %s is registered, 1.49.0 was there", got)
	}
	p.drivers["d"].close()
	ended := make(chan struct{})
	go func() { r.running.Wait(); close(ended) }()
	wait.For(t, "the watches of connections that were replaced to end", ended)
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
			client, err := agent.plugins.client(w.driverName())
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

// TestSocketReplacedByAnotherDriver by a rename: the first driver is unregistered, as if its socket had been removed
// before.
func TestSocketReplacedByAnotherDriver(t *testing.T) {
	w := newWorld(t)
	w.driver.Stop()
	first := w.registrar("reg.sock", w.behind("1.0.0"))
	w.agent()
	first.Registered()
	other := w.behind("1.0.0")
	other.Name = otherDriver
	second := w.registrar(".next.sock", other)
	must(t, os.Rename(second.Address, first.Address))
	if status := second.Registered(); !status.PluginRegistered {
		t.Fatalf("not registered: %s", status.Error)
	}
	wait.Until(w, "the first one is forgotten", func() bool {
		is := w.knows()
		return len(is.IDs) == 1 && len(is.Drivers) == 1 && is.Drivers[0].Name == otherDriver
	})
}

// TestLostEventsAreMadeUpFor: after lost events the registry lists the directory itself.
func TestLostEventsAreMadeUpFor(t *testing.T) {
	p := onlyPlugins(t, ignore)
	r := p.registry
	must(t, r.open())
	defer r.queue.ShutDown()
	must(t, r.watcher.close())
	var err error
	r.watcher, err = newPluginWatcher() // of no directory yet
	must(t, err)
	socket := filepath.Join(p.root.Path(registryDir), "reg.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	defer listener.Close()
	r.watcher.reportLost(errors.New("queue overflow"))
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	defer watching.Wait()
	defer cancel()
	asked := make(chan string, 1)
	go func() {
		socket, _ := r.queue.Get()
		asked <- socket
	}()
	if got := wait.For(t, "the socket to be noticed", asked); got != socket {
		t.Errorf("%q is asked, want %s", got, socket)
	}
}
