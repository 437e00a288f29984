package nodeagent

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// A kernel gives one user 128 inotify instances (fs.inotify.max_user_instances). A
// process with a thousand agents can do with one: it is made for the first that
// watches, shared by all, and ends with the last.
var shared struct {
	mu       sync.Mutex
	watcher  *fsnotify.Watcher           // guarded by mu; nil while nobody watches
	open     map[*pluginWatcher]struct{} // guarded by mu
	watchers map[string]*pluginWatcher   // guarded by mu; by directory
	stopped  chan struct{}               // closed when the watcher's goroutine has ended
}

// noticesHeld is how many events wait for one agent. When they are more, it is told to look itself.
const noticesHeld = 64

// pluginWatcher are what happens in the directories that one agent watches.
type pluginWatcher struct {
	events chan fsnotify.Event
	// lost holds one word when events were lost.
	lost chan error
}

// watchNotices begins with no directory.
func watchNotices() (*pluginWatcher, error) {
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
	n := &pluginWatcher{events: make(chan fsnotify.Event, noticesHeld), lost: make(chan error, 1)}
	shared.open[n] = struct{}{}
	return n, nil
}

// add watches one more directory.
func (n *pluginWatcher) add(dir string) error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if _, open := shared.open[n]; !open {
		return fsnotify.ErrClosed
	}
	// Before the first event can come.
	shared.watchers[dir] = n
	if err := shared.watcher.Add(dir); err != nil {
		delete(shared.watchers, dir)
		return err
	}
	return nil
}

// close ends the watch of all directories.
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

// deliver gives each event to the agent that watches its directory. It never waits for one.
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
				continue // no agent watches it any more
			}
			select {
			case n.events <- event:
			default:
				n.lose(errors.New("event queue overflow"))
			}
		case err, open := <-watcher.Errors:
			if !open {
				return
			}
			shared.mu.Lock()
			for n := range shared.open {
				n.lose(err)
			}
			shared.mu.Unlock()
		}
	}
}

func (n *pluginWatcher) lose(err error) {
	select {
	case n.lost <- err:
	default: // it has been told, and has not looked yet
	}
}
