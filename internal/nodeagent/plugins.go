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

// plugins owns what is known of the CSI drivers of this node: which are registered, their clients and
// capabilities, what their CSIDrivers say, and what Node and CSINode say of them. It knows neither
// volumes nor pods. Its methods may be called with the lock of either held; it calls its handlers
// without its own.
type plugins struct {
	config   Config
	log      logr.Logger
	root     *mount.Root
	on       pluginHandlers
	registry *registry
	identity *identity
	// csiDrivers is the watch cache of CSIDrivers.
	csiDrivers cache.SharedIndexInformer
	// limitsDue holds the drivers whose attach limit may have to be refreshed. Each is asked by a
	// goroutine of its own: one that hangs blocks no other, and no volume.
	limitsDue workqueue.TypedDelayingInterface[string]

	mu sync.Mutex
	// Under mu:
	drivers map[string]*driver
	// limits holds the drivers whose limit is refreshed.
	limits map[string]limitUpkeep
}

// pluginHandlers are called without the lock of plugins held.
type pluginHandlers struct {
	// changed: the driver was registered or connected again, or is gone, or its CSIDriver has changed.
	changed func(driver string)
	// reconnected comes before changed when a connection was made: behind it may be another version of the driver.
	reconnected func(driver string)
	// csiDriversListed: attachRequired is known from here on; csiDriversUnknown: why they could not be listed or watched.
	csiDriversListed  func()
	csiDriversUnknown func(error)
	// measure returns what is told of each call to the driver, nil if nothing is.
	measure func(driver string) func(csi.Call)
}

// newPlugins makes plugins that write nothing to the API before sure is closed.
func newPlugins(config Config, root *mount.Root, client kubernetes.Interface, sure <-chan struct{}, on pluginHandlers) *plugins {
	p := &plugins{
		config: config, log: config.Logger, root: root, on: on,
		identity:  newIdentity(config.NodeName, client),
		limitsDue: workqueue.NewTypedDelayingQueue[string](),
		drivers:   map[string]*driver{},
		limits:    map[string]limitUpkeep{},
	}
	p.identity.sure, p.identity.root = sure, config.BootID+" "+root.Path(".")
	p.registry = newRegistry(p)
	p.csiDrivers = p.newCSIDriverInformer(client)
	return p
}

// close ends what newPlugins began.
func (p *plugins) close() {
	p.registry.queue.ShutDown()
	p.limitsDue.ShutDown()
}

// open begins to watch for the sockets of drivers, which run then registers.
func (p *plugins) open() error { return p.registry.open() }

// run registers drivers and refreshes their limits until ctx ends. It needs no API server to make drivers usable.
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

// serveAPI follows the CSIDrivers and keeps Node and CSINode until ctx ends.
func (p *plugins) serveAPI(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.csiDrivers.RunWithContext(ctx) })
	running.Go(func() { p.identity.keep(ctx, p.log) })
	select {
	case <-p.csiDrivers.HasSyncedChecker().Done():
		p.planLimits()
		p.on.csiDriversListed()
	case <-ctx.Done():
	}
	running.Wait()
}

// ready says what is missing before volumes can be mounted; nil if nothing.
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

// seeNode takes in a version of the Node from the watch.
func (p *plugins) seeNode(node *corev1.Node) { p.identity.see(node) }

// registered returns a driver's client and capabilities as they belong together. The client is nil
// if the driver is not registered, the capabilities also while they have not been read.
func (p *plugins) registered(driver string) (*csi.Node, *csi.NodeCapabilities) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.drivers[driver]; d != nil {
		return d.client, d.capabilities
	}
	return nil, nil
}

// client returns the client of a registered driver. It works until the driver is gone and the calls on it have ended.
func (p *plugins) client(driver string) (*csi.Node, error) {
	client, _ := p.registered(driver)
	if client == nil {
		return nil, notRegistered(driver)
	}
	return client, nil
}

// capabilities asks a driver what it can do, unless that is known.
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
	return fmt.Errorf("driver %s is not registered on this node any more", driver)
}

// sockets are those at which drivers are registered, and those that are there.
func (p *plugins) sockets() (registered, present []string) {
	p.mu.Lock()
	for _, d := range p.drivers {
		registered = append(registered, d.socket)
	}
	p.mu.Unlock()
	return registered, p.registry.present()
}

// reconnected: the driver may be another version.
func (p *plugins) reconnected(driver string) {
	p.mu.Lock()
	if d := p.drivers[driver]; d != nil {
		d.capabilities = nil
	}
	p.mu.Unlock()
	p.on.reconnected(driver)
	p.changed(driver)
}

// changed has a driver's limit looked after and tells of the change.
func (p *plugins) changed(driver string) {
	p.limitsDue.Add(driver)
	p.on.changed(driver)
}
