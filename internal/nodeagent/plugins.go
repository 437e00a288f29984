package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
)

// plugins tracks the CSI drivers of this node: their registrations, clients, capabilities and CSIDrivers, and their entries in Node and
// CSINode. It knows neither volumes nor pods. Its methods may be called with the lock of either held; it calls its handlers without its
// own.
type plugins struct {
	config   Config
	log      logr.Logger
	root     *mount.Root
	on       pluginHandlers
	registry *registry
	identity *identity
	// csiDrivers is the informer of CSIDrivers.
	csiDrivers cache.SharedIndexInformer
	// limitsDue queues the drivers whose attach limit may be due. Each has its own goroutine, so that a driver that hangs blocks no other.
	limitsDue workqueue.TypedDelayingInterface[string]

	mu sync.Mutex
	// Under mu:
	drivers map[string]*driver
	// limits has the drivers whose limit is refreshed.
	limits map[string]limitRefresh
}

// pluginHandlers are called without the lock of plugins.
type pluginHandlers struct {
	// changed is called when the driver was registered, reconnected or unregistered, or when its CSIDriver has changed.
	changed func(driver string)
	// reconnected is called before changed after a new connection: the driver may have been upgraded.
	reconnected func(driver string)
	// csiDriversListed is called once attachRequired is known, csiDriversUnknown when listing or watching CSIDrivers fails.
	csiDriversListed  func()
	csiDriversUnknown func(error)
	// measure returns the observer of the calls to a driver, or nil.
	measure func(driver string) func(csi.Call)
}

// newPlugins creates plugins that write nothing to the API before verified is closed.
func newPlugins(config Config, root *mount.Root, client kubernetes.Interface, ownerVerified <-chan struct{}, on pluginHandlers) *plugins {
	p := &plugins{
		config: config, log: config.Logger, root: root, on: on,
		identity:  newIdentity(config.NodeName, client),
		limitsDue: workqueue.NewTypedDelayingQueue[string](),
		drivers:   map[string]*driver{},
		limits:    map[string]limitRefresh{},
	}
	p.identity.ownerVerified, p.identity.root = ownerVerified, config.BootID+" "+root.Path(".")
	p.registry = newRegistry(p)
	p.csiDrivers = p.newCSIDriverInformer(client)
	return p
}

// close releases what newPlugins created.
func (p *plugins) close() {
	p.registry.queue.ShutDown()
	p.limitsDue.ShutDown()
}

// open starts watching for the sockets of drivers.
func (p *plugins) open() error { return p.registry.open() }

// run registers drivers and refreshes their limits until ctx ends. Registering a driver for use needs no API server.
func (p *plugins) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() {
		serve(p.limitsDue, func(driver string) {
			if ctx.Err() == nil {
				p.refreshLimit(ctx, driver)
			}
		})
	})
	p.registry.run(ctx)
	p.limitsDue.ShutDown()
	running.Wait()
}

// serveAPI watches CSIDrivers and writes Node and CSINode until ctx ends.
func (p *plugins) serveAPI(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.csiDrivers.RunWithContext(ctx) })
	running.Go(func() { p.identity.run(ctx, p.log) })
	select {
	case <-p.csiDrivers.HasSyncedChecker().Done():
		p.planLimits()
		p.on.csiDriversListed()
	case <-ctx.Done():
	}
	running.Wait()
}

// ready returns why no volume can be mounted yet, or nil.
func (p *plugins) ready() error {
	switch {
	case !p.identity.isWritten():
		return fmt.Errorf("CSINode %s has not been written", p.config.NodeName)
	case !p.csiDrivers.HasSynced():
		return errors.New("the CSIDrivers have not been listed")
	default:
		return nil
	}
}

// observeNode handles a version of the Node from the watch.
func (p *plugins) observeNode(node *corev1.Node) { p.identity.observe(node) }

// registered returns a consistent pair of a driver's client and capabilities. The client is nil if the driver is not registered, and so are
// the capabilities until they have been read.
func (p *plugins) registered(driver string) (*csi.Node, *csi.NodeCapabilities) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.drivers[driver]; d != nil {
		return d.client, d.capabilities
	}
	return nil, nil
}

// client returns the client of a registered driver. It can be used until the driver is unregistered and its running calls have ended.
func (p *plugins) client(driver string) (*csi.Node, error) {
	client, _ := p.registered(driver)
	if client == nil {
		return nil, notRegistered(driver)
	}
	return client, nil
}

// capabilities returns the capabilities of a driver. It calls NodeGetCapabilities if they are not cached.
func (p *plugins) capabilities(ctx context.Context, driver string) (*csi.Node, csi.NodeCapabilities, error) {
	client, known := p.registered(driver)
	switch {
	case client == nil:
		return nil, csi.NodeCapabilities{}, notRegistered(driver)
	case known != nil:
		return client, *known, nil
	}
	has, err := client.Capabilities(ctx)
	if err != nil {
		return nil, csi.NodeCapabilities{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.drivers[driver]; d != nil && d.client == client {
		d.capabilities = &has
	}
	return client, has, nil
}

func notRegistered(driver string) error {
	return fmt.Errorf("driver %s is no longer registered on this node", driver)
}

// sockets returns the sockets of the registered drivers, and all registration sockets that exist.
func (p *plugins) sockets() (registered, present []string) {
	p.mu.Lock()
	for _, d := range p.drivers {
		registered = append(registered, d.socket)
	}
	p.mu.Unlock()
	return registered, p.registry.present()
}

// reconnected clears the cached capabilities, as the driver may have been upgraded.
func (p *plugins) reconnected(driver string) {
	p.mu.Lock()
	if d := p.drivers[driver]; d != nil {
		d.capabilities = nil
	}
	p.mu.Unlock()
	p.on.reconnected(driver)
	p.changed(driver)
}

// changed checks the driver's limit and calls the handler.
func (p *plugins) changed(driver string) {
	p.limitsDue.Add(driver)
	p.on.changed(driver)
}
