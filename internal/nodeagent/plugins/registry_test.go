package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/testing/wait"
)

func TestDriverWithChangedNodeIDIsRegisteredAgain(t *testing.T) {
	w := newWorld(t)
	_, stop := w.plugins()
	w.driver.Registered()
	stop()
	w.driver.Lock()
	w.driver.NodeInfo = &csispec.NodeGetInfoResponse{NodeId: "another"}
	w.driver.Unlock()
	w.plugins()
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
			w.plugins()
			if status := misfit.Registered(); status.PluginRegistered || !strings.Contains(status.Error, test.want) {
				t.Errorf("the invalid driver was notified of %+v, want %q", status, test.want)
			}
			w.driver.Start()
			if status := w.driver.Registered(); !status.PluginRegistered {
				t.Errorf("not registered: %s", status.Error)
			}
			w.wantCSINode()
		})
	}
}

// TestDriverMovedToAnotherSocketStaysRegistered: it is back before its removal was processed.
func TestDriverMovedToAnotherSocketStaysRegistered(t *testing.T) {
	w := newWorld(t)
	next := w.newDriver(w.driverName())
	next.Address = filepath.Join(w.root, RegistryDir, "next-reg.sock")
	var p *Plugins
	var once sync.Once
	moved := make(chan bool, 1) // whether the cluster is to forget it, as of the moment when it is gone
	p, _ = w.plugins(func(c *Config) {
		c.Log = funcr.New(func(_, line string) {
			if strings.Contains(line, "Driver unregistered") {
				once.Do(func() {
					p.identity.mu.Lock()
					forgotten := p.identity.gone[w.driverName()]
					p.identity.mu.Unlock()
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
	w.wantCSINode()
}

func TestDriverStaysRegisteredWhenNotificationFails(t *testing.T) {
	w := newWorld(t)
	var p *Plugins
	var clients []*csi.Node // the client at each notification; under the lock of plugins
	w.driver.Lock()
	w.driver.OnNotify = func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if d := p.drivers[w.driverName()]; d != nil {
			clients = append(clients, d.client)
		}
		if len(clients) == 1 {
			return errors.New("not now")
		}
		return nil
	}
	w.driver.Unlock()
	w.driver.Stop()
	p, _ = w.plugins()
	w.driver.Start()
	w.driver.Registered()
	wait.Until(w, "the plugin is notified again", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(clients) > 1
	})
	if clients[0] != clients[1] {
		t.Errorf("there is a new connection, and calls on the first one were lost: %v", clients)
	}
}

func TestSocketRemovedWhileEventsWereLost(t *testing.T) {
	p := onlyPlugins(t, ignore)
	must(t, p.config.Root.MakeDir(RegistryDir))
	stays, goes := filepath.Join(p.config.Root.Path(RegistryDir), "stays"), filepath.Join(p.config.Root.Path(RegistryDir), "goes")
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

// TestSocketReplacedByAnotherDriver by a rename: the first driver is unregistered, as if its socket had been removed
// before.
func TestSocketReplacedByAnotherDriver(t *testing.T) {
	w := newWorld(t)
	w.driver.Stop()
	first := w.registrar("reg.sock", w.behind("1.0.0"))
	w.plugins()
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
	socket := filepath.Join(p.config.Root.Path(RegistryDir), "reg.sock")
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
