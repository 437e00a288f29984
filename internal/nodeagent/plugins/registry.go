package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/worker"
)

// Kubelet's timeouts and back-off for registration.
const (
	getInfoTimeout  = 11 * time.Second // 10 s for the connection, 1 s for the call
	notifyTimeout   = 5 * time.Second
	registerFirst   = 500 * time.Millisecond
	registerBackOff = 2*time.Minute + 2*time.Second
)

// driver is one registered CSI driver. Its fields are guarded by Plugins.mu; only capabilities changes after the registration.
type driver struct {
	name     string
	socket   string
	endpoint string
	version  *version.Version
	client   *csi.Node
	// capabilities are read on demand, and again after a reconnect: the driver may have been upgraded.
	capabilities *csi.NodeCapabilities
	stop         context.CancelFunc
}

// registry registers the drivers whose sockets appear in kubelet's plugins_registry.
type registry struct {
	plugins *Plugins
	dir     string
	// watcher is set by open.
	watcher *pluginWatcher
	queue   workqueue.TypedRateLimitingInterface[string]
	running sync.WaitGroup

	mu sync.Mutex
	// sockets has the generation of each socket, 0 for one that was removed. A recreated socket gets a new generation.
	sockets map[string]int
	// generations is the last generation.
	generations int
	// registered has the generation of each socket that was registered.
	registered map[string]int
}

func newRegistry(p *Plugins) *registry {
	return &registry{
		plugins: p, dir: p.config.Root.Path(RegistryDir),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](registerFirst, registerBackOff)),
		sockets: map[string]int{}, registered: map[string]int{},
	}
}

// open starts the watch before it lists the directory, so that no socket is missed.
func (r *registry) open() error {
	root := r.plugins.config.Root
	if err := errors.Join(root.MakeDir(RegistryDir), root.MakeDir("plugins")); err != nil {
		return err
	}
	watch, err := newPluginWatcher()
	if err != nil {
		return err
	}
	r.watcher = watch
	if err := r.walk(r.dir); err != nil {
		return errors.Join(err, watch.close())
	}
	return nil
}

// walk watches a directory and its subdirectories, and adds the sockets in them.
func (r *registry) walk(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("look for driver sockets: %w", err)
		case path != r.dir && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return filepath.SkipDir
			}
		case entry.IsDir():
			if err := r.watcher.add(path); err != nil {
				return fmt.Errorf("watch %s: %w", path, err)
			}
		case entry.Type()&fs.ModeSocket != 0:
			r.socketAdded(path)
		}
		return nil
	})
}

func (r *registry) socketAdded(socket string) {
	r.mu.Lock()
	r.generations++
	r.sockets[socket] = r.generations
	r.mu.Unlock()
	r.queue.Forget(socket)
	r.queue.Add(socket)
}

func (r *registry) socketRemoved(socket string) {
	r.mu.Lock()
	_, known := r.sockets[socket]
	r.sockets[socket] = 0
	r.mu.Unlock()
	if known {
		r.queue.Forget(socket)
		r.queue.Add(socket)
	}
}

// run registers drivers until ctx ends.
func (r *registry) run(ctx context.Context) {
	r.running.Go(func() {
		worker.Serve(r.queue, func(socket string) {
			switch err := r.sync(ctx, socket); {
			case err == nil:
				r.queue.Forget(socket)
			case ctx.Err() == nil:
				r.plugins.log.Error(err, "Failed to register driver, retrying", "socket", socket)
				r.queue.AddRateLimited(socket)
			}
		})
	})
	r.watch(ctx)
	r.queue.ShutDown()
	r.running.Wait()
	r.closeDrivers() // after the last registration
}

func (r *registry) watch(ctx context.Context) {
	defer r.watcher.close() //nolint:errcheck // there is nothing to recover
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-r.watcher.events:
			r.handle(event)
		case err := <-r.watcher.lost:
			r.plugins.log.Error(err, "Lost events of the watch for registration sockets, listing them again")
			r.relist()
		}
	}
}

// relist finds the sockets that were added or removed while events were lost.
func (r *registry) relist() {
	if err := r.walk(r.dir); err != nil {
		r.plugins.log.Error(err, "Failed to list registration sockets")
	}
	r.mu.Lock()
	known := slices.Collect(maps.Keys(r.sockets))
	r.mu.Unlock()
	for _, socket := range known {
		if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
			r.socketRemoved(socket)
		}
	}
}

func (r *registry) handle(event fsnotify.Event) {
	if strings.HasPrefix(filepath.Base(event.Name), ".") {
		return
	}
	switch {
	case event.Has(fsnotify.Create):
		entry, err := os.Stat(event.Name)
		switch {
		case err != nil: // gone again
		case entry.IsDir():
			if err := r.walk(event.Name); err != nil {
				r.plugins.log.Error(err, "Failed to list registration sockets")
			}
		case entry.Mode()&fs.ModeSocket != 0:
			r.socketAdded(event.Name)
		}
	case event.Has(fsnotify.Remove), event.Has(fsnotify.Rename):
		if _, err := os.Lstat(event.Name); errors.Is(err, fs.ErrNotExist) {
			r.socketRemoved(event.Name)
		}
	}
}

// sync registers the driver at a socket, or unregisters it if the socket is gone.
func (r *registry) sync(ctx context.Context, socket string) error {
	r.mu.Lock()
	generation, registered := r.sockets[socket], r.registered[socket]
	r.mu.Unlock()
	switch generation {
	case 0:
		r.drop(socket, "")
	case registered:
		return nil
	default:
		if err := r.register(ctx, socket); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registered[socket] = generation
	return nil
}

// drop unregisters the driver that was registered at a socket, unless it has moved to another socket, or is the one that the socket names.
func (r *registry) drop(socket, named string) {
	p := r.plugins
	p.mu.Lock()
	var gone *driver
	for name, d := range p.drivers {
		if d.socket == socket && name != named {
			gone = d
			delete(p.drivers, name)
			// Under the lock, as the driver may be registering at another socket.
			p.identity.remove(name)
		}
	}
	p.mu.Unlock()
	if gone == nil {
		return
	}
	p.log.Info("Driver unregistered", "driver", gone.name)
	gone.retire()
	p.changed(gone.name)
	r.retryRefused()
}

// retryRefused retries the sockets that are not registered: they may have been rejected because of the driver that is gone.
func (r *registry) retryRefused() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for socket, generation := range r.sockets {
		if generation != 0 && generation != r.registered[socket] {
			r.queue.Forget(socket)
			r.queue.Add(socket)
		}
	}
}

func (d *driver) close() {
	d.stop()
	_ = d.client.Close()
}

// retire lets running calls finish: when a registrar goes its driver keeps running, and cancelling a call would leave its result unknown.
func (d *driver) retire() {
	d.stop()
	d.client.Retire()
}

func (r *registry) closeDrivers() {
	r.plugins.mu.Lock()
	defer r.plugins.mu.Unlock()
	for _, d := range r.plugins.drivers {
		d.close()
	}
}

// register reads a plugin's info from its socket, registers it, and notifies the plugin of the result.
func (r *registry) register(ctx context.Context, socket string) error {
	registration, err := csi.DialRegistration(socket)
	if err != nil {
		return err
	}
	defer registration.Close() //nolint:errcheck // there is nothing to recover
	infoCtx, cancel := context.WithTimeout(ctx, getInfoTimeout)
	defer cancel()
	plugin, err := registration.Info(infoCtx)
	if err != nil {
		return err
	}
	named := ""
	if plugin.IsCSI {
		named = plugin.Name
	}
	r.drop(socket, named) // the socket may have belonged to another driver
	problem := r.registerPlugin(ctx, socket, plugin)
	notifyCtx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if err := registration.Notify(notifyCtx, problem); err != nil && problem == nil {
		return err // the driver stays registered, volumes may be using it; notify it again
	}
	return problem
}

func (r *registry) registerPlugin(ctx context.Context, socket string, plugin csi.Plugin) error {
	if !plugin.IsCSI {
		return fmt.Errorf("RegisterPlugin error -- no handler registered for plugin type: %s at socket %s", plugin.Type, socket)
	}
	newest, err := r.validate(socket, plugin)
	if err != nil {
		return fmt.Errorf("RegisterPlugin error -- plugin validation failed with err: %w", err)
	}
	endpoint := plugin.Endpoint
	if endpoint == "" {
		endpoint = socket
	}
	if err := r.connect(ctx, driver{name: plugin.Name, socket: socket, endpoint: endpoint, version: newest}); err != nil {
		return fmt.Errorf("RegisterPlugin error -- plugin registration failed with err: %w", err)
	}
	return nil
}

// validate returns the highest supported version, and rejects a second driver of the same name.
func (r *registry) validate(socket string, plugin csi.Plugin) (*version.Version, error) {
	if err := mount.CheckName(plugin.Name); err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	if strings.Contains(plugin.Name, "^") {
		return nil, fmt.Errorf("driver name %q contains a character that volume names cannot contain", plugin.Name)
	}
	if len(plugin.Versions) == 0 {
		return nil, fmt.Errorf("driver %s has an empty list for supported versions", plugin.Name)
	}
	newest, err := version.HighestSupportedVersion(plugin.Versions)
	if err != nil {
		return nil, fmt.Errorf("driver %s: none of the versions %q is supported: %w", plugin.Name, plugin.Versions, err)
	}
	r.plugins.mu.Lock()
	defer r.plugins.mu.Unlock()
	return newest, r.plugins.mayReplace(&driver{name: plugin.Name, socket: socket, version: newest})
}

// mayReplace rejects a driver if another one of the same name has the same or a higher version. The caller holds mu.
func (p *Plugins) mayReplace(d *driver) error {
	if other := p.drivers[d.name]; other != nil && other.socket != d.socket && !other.version.LessThan(d.version) {
		return fmt.Errorf("CSI driver %s at socket %s: Another driver with the same name is already registered with a higher supported version: %s",
			d.name, d.socket, other.version)
	}
	return nil
}

// connect registers a driver. Unmounting can use it as soon as it is connected, even if the API server is down.
func (r *registry) connect(ctx context.Context, found driver) error {
	p := r.plugins
	d, err := r.replaceDriver(ctx, found)
	if err != nil {
		return err
	}
	p.changed(d.name)
	callCtx, cancel := context.WithTimeout(ctx, p.config.RPCTimeout)
	defer cancel()
	info, err := d.client.Info(callCtx)
	if err != nil {
		return err
	}
	if err := p.identity.install(ctx, d.name, info); err != nil {
		return err
	}
	p.log.Info("Driver registered", "driver", d.name, "nodeID", info.NodeID, "endpoint", d.endpoint)
	return nil
}

// replaceDriver stores the driver in place of an earlier one of the same name. A connection to the same endpoint is kept, with its running
// calls.
func (r *registry) replaceDriver(ctx context.Context, found driver) (*driver, error) {
	p := r.plugins
	measure := p.on.Measure(found.name)
	// Two sockets may name the same driver at the same time.
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &found
	if err := p.mayReplace(d); err != nil {
		return nil, err
	}
	old := p.drivers[d.name]
	if old != nil && old.endpoint == d.endpoint {
		d.client, d.stop = old.client, old.stop
	} else {
		client, err := csi.DialNode(d.endpoint, measure)
		if err != nil {
			return nil, err
		}
		watching, stop := context.WithCancel(ctx)
		d.client, d.stop = client, stop
		r.running.Go(func() { client.WatchConnection(watching, func() { p.reconnected(d.name) }) })
		if old != nil {
			old.retire()
		}
	}
	p.drivers[d.name] = d
	return d, nil
}

// present returns the registration sockets that exist.
func (r *registry) present() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sockets []string
	for socket, generation := range r.sockets {
		if generation != 0 {
			sockets = append(sockets, socket)
		}
	}
	return sockets
}
