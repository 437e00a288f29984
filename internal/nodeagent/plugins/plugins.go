// Package plugins tracks the CSI drivers of this node: their sockets and registrations, clients, capabilities, CSIDrivers and attach limits, and
// their entries in Node and CSINode. It knows neither volumes nor pods.
package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/worker"
)

// RegistryDir is kubelet's directory for the registration sockets, below the root. Drivers and their registrars know it.
const RegistryDir = "plugins_registry"

// Plugins are the CSI drivers of one node. Its methods may be called with a lock of the caller held; it calls its handlers without its own.
type Plugins struct {
	config   Config
	log      logr.Logger
	on       Handlers
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

// Config is what Plugins need.
type Config struct {
	NodeName string
	Root     *mount.Root
	// VolumesRoot is the value of kube.VolumesRootAnnotation; empty for none.
	VolumesRoot string
	Client      kubernetes.Interface
	Log         logr.Logger
	// Verified is closed once the API may be written: the records below the root are known to be this node's.
	Verified <-chan struct{}
	// RPCTimeout bounds one call to a driver.
	RPCTimeout time.Duration
	// LimitPeriodUnit is the unit of nodeAllocatableUpdatePeriodSeconds; 0 is a second. Tests set it.
	LimitPeriodUnit time.Duration
}

// Handlers are called without a lock.
type Handlers struct {
	// Changed is called when the driver was registered, reconnected or unregistered, or when its CSIDriver has changed.
	Changed func(driver string)
	// Reconnected is called before Changed after a new connection: the driver may have been upgraded.
	Reconnected func(driver string)
	// CSIDriversListed is called once Rules.AttachRequired is known, CSIDriversUnknown when listing or watching CSIDrivers fails.
	CSIDriversListed  func()
	CSIDriversUnknown func(error)
	// Measure returns the observer of the calls to a driver, or nil.
	Measure func(driver string) func(csi.Call)
}

// New creates Plugins without a driver.
func New(config Config, on Handlers) *Plugins {
	config.LimitPeriodUnit = cmp.Or(config.LimitPeriodUnit, time.Second)
	p := &Plugins{
		config: config, log: config.Log, on: on,
		identity:  newIdentity(config),
		limitsDue: workqueue.NewTypedDelayingQueue[string](),
		drivers:   map[string]*driver{},
		limits:    map[string]limitRefresh{},
	}
	p.registry = newRegistry(p)
	p.csiDrivers = p.newCSIDriverInformer()
	return p
}

// Close releases what New created.
func (p *Plugins) Close() {
	p.registry.queue.ShutDown()
	p.limitsDue.ShutDown()
}

// Open starts watching for the sockets of drivers.
func (p *Plugins) Open() error { return p.registry.open() }

// Run registers drivers and refreshes their limits until ctx ends. Registering a driver for use needs no API server.
func (p *Plugins) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() {
		worker.Serve(p.limitsDue, func(driver string) {
			if ctx.Err() == nil {
				p.refreshLimit(ctx, driver)
			}
		})
	})
	p.registry.run(ctx)
	p.limitsDue.ShutDown()
	running.Wait()
}

// ServeAPI watches CSIDrivers and writes Node and CSINode until ctx ends.
func (p *Plugins) ServeAPI(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.csiDrivers.RunWithContext(ctx) })
	running.Go(func() { p.identity.run(ctx, p.log) })
	select {
	case <-p.csiDrivers.HasSyncedChecker().Done():
		p.planLimits()
		p.on.CSIDriversListed()
	case <-ctx.Done():
	}
	running.Wait()
}

// Ready returns why no volume can be mounted yet, or nil.
func (p *Plugins) Ready() error {
	switch {
	case !p.identity.isWritten():
		return fmt.Errorf("CSINode %s has not been written", p.config.NodeName)
	case !p.csiDrivers.HasSynced():
		return errors.New("the CSIDrivers have not been listed")
	default:
		return nil
	}
}

// ObserveNode handles a version of the Node from a watch.
func (p *Plugins) ObserveNode(node *corev1.Node) { p.identity.observe(node) }

// Registered returns a consistent pair of a driver's client and capabilities. The client is nil if the driver is not registered, and so are
// the capabilities until they have been read.
func (p *Plugins) Registered(driver string) (*csi.Node, *csi.NodeCapabilities) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.drivers[driver]; d != nil {
		return d.client, d.capabilities
	}
	return nil, nil
}

// Client returns the client of a registered driver. It can be used until the driver is unregistered and its running calls have ended.
func (p *Plugins) Client(driver string) (*csi.Node, error) {
	client, _ := p.Registered(driver)
	if client == nil {
		return nil, NotRegistered(driver)
	}
	return client, nil
}

// Capabilities returns the capabilities of a driver. It calls NodeGetCapabilities if they are not cached.
func (p *Plugins) Capabilities(ctx context.Context, driver string) (*csi.Node, csi.NodeCapabilities, error) {
	client, known := p.Registered(driver)
	switch {
	case client == nil:
		return nil, csi.NodeCapabilities{}, NotRegistered(driver)
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

// NotRegistered is the error of a call to a driver that is not registered.
func NotRegistered(driver string) error {
	return fmt.Errorf("driver %s is no longer registered on this node", driver)
}

// Sockets returns the sockets of the registered drivers, and all registration sockets that exist.
func (p *Plugins) Sockets() (registered, present []string) {
	p.mu.Lock()
	for _, d := range p.drivers {
		registered = append(registered, d.socket)
	}
	p.mu.Unlock()
	return registered, p.registry.present()
}

// reconnected clears the cached capabilities, as the driver may have been upgraded.
func (p *Plugins) reconnected(driver string) {
	p.mu.Lock()
	if d := p.drivers[driver]; d != nil {
		d.capabilities = nil
	}
	p.mu.Unlock()
	p.on.Reconnected(driver)
	p.changed(driver)
}

// changed checks the driver's limit and calls the handler.
func (p *Plugins) changed(driver string) {
	p.limitsDue.Add(driver)
	p.on.Changed(driver)
}
