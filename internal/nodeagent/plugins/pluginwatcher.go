package plugins

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// The kernel gives a user 128 inotify instances (fs.inotify.max_user_instances). So that one process can run a thousand agents, they share
// one watcher, which lives from the first pluginWatcher to the last.
var shared struct {
	mu       sync.Mutex
	watcher  *fsnotify.Watcher           // guarded by mu; nil without a pluginWatcher
	open     map[*pluginWatcher]struct{} // guarded by mu
	watchers map[string]*pluginWatcher   // guarded by mu; by directory
	stopped  chan struct{}               // closed when deliver has returned
}

// eventBuffer is the number of events that one agent may lag behind before it has to list the directories again.
const eventBuffer = 64

// pluginWatcher receives the events in the directories that one agent watches.
type pluginWatcher struct {
	events chan fsnotify.Event
	// lost receives an error after events were lost.
	lost chan error
}

// newPluginWatcher creates a pluginWatcher without directories.
func newPluginWatcher() (*pluginWatcher, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.watcher == nil {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, fmt.Errorf("watch for driver registrations (are fs.inotify.max_user_instances used up?): %w", err)
		}
		shared.watcher, shared.stopped = watcher, make(chan struct{})
		shared.open, shared.watchers = map[*pluginWatcher]struct{}{}, map[string]*pluginWatcher{}
		go deliver(watcher, shared.stopped)
	}
	n := &pluginWatcher{events: make(chan fsnotify.Event, eventBuffer), lost: make(chan error, 1)}
	shared.open[n] = struct{}{}
	return n, nil
}

// add watches a directory.
func (n *pluginWatcher) add(dir string) error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if _, open := shared.open[n]; !open {
		return fsnotify.ErrClosed
	}
	// Registered first, so that no event is dropped.
	shared.watchers[dir] = n
	if err := shared.watcher.Add(dir); err != nil {
		delete(shared.watchers, dir)
		return err
	}
	return nil
}

// close stops watching all directories.
func (n *pluginWatcher) close() error {
	shared.mu.Lock()
	if _, open := shared.open[n]; !open {
		shared.mu.Unlock()
		return nil
	}
	delete(shared.open, n)
	var last *fsnotify.Watcher
	if len(shared.open) == 0 {
		last, shared.watcher = shared.watcher, nil
	}
	for dir, owner := range shared.watchers {
		if owner != n {
			continue
		}
		delete(shared.watchers, dir)
		if last == nil {
			_ = shared.watcher.Remove(dir) // it may be gone
		}
	}
	stopped := shared.stopped
	shared.mu.Unlock()
	if last == nil {
		return nil
	}
	err := last.Close()
	<-stopped
	return err
}

// deliver passes each event to the agent that watches its directory. It never blocks on an agent.
func deliver(watcher *fsnotify.Watcher, stopped chan<- struct{}) {
	defer close(stopped)
	for {
		select {
		case event, open := <-watcher.Events:
			if !open {
				return
			}
			shared.mu.Lock()
			n := shared.watchers[filepath.Dir(event.Name)]
			shared.mu.Unlock()
			if n == nil {
				continue // no longer watched
			}
			select {
			case n.events <- event:
			default:
				n.reportLost(errors.New("event queue overflow"))
			}
		case err, open := <-watcher.Errors:
			if !open {
				return
			}
			shared.mu.Lock()
			for n := range shared.open {
				n.reportLost(err)
			}
			shared.mu.Unlock()
		}
	}
}

func (n *pluginWatcher) reportLost(err error) {
	select {
	case n.lost <- err:
	default: // one is pending already
	}
}
