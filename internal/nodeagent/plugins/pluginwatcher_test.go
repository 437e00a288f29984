package plugins

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/fsnotify/fsnotify"

	"belay.dev/belay/internal/testing/wait"
)

func nextEvent(t *testing.T, n *pluginWatcher) fsnotify.Event {
	t.Helper()
	return wait.For(t, "an event", n.events)
}

// More than the inotify instances that a kernel allows a user.
func TestManyAgentsShareOneWatch(t *testing.T) {
	const agents = 300
	var all []*pluginWatcher
	var dirs []string
	for range agents {
		n, err := newPluginWatcher()
		must(t, err)
		dir := t.TempDir()
		must(t, n.add(dir))
		all, dirs = append(all, n), append(dirs, dir)
	}
	for i, n := range all {
		socket := filepath.Join(dirs[i], "s")
		must(t, os.WriteFile(socket, nil, 0o600))
		if event := nextEvent(t, n); event.Name != socket || !event.Has(fsnotify.Create) {
			t.Fatalf("agent %d got the event %v", i, event)
		}
	}
	for _, n := range all[1:] {
		must(t, n.close())
	}
	must(t, os.WriteFile(filepath.Join(dirs[1], "later"), nil, 0o600))
	must(t, os.Remove(filepath.Join(dirs[0], "s")))
	for event := nextEvent(t, all[0]); !event.Has(fsnotify.Remove); event = nextEvent(t, all[0]) {
		if filepath.Dir(event.Name) != dirs[0] {
			t.Fatalf("the remaining agent got the event %v", event)
		}
	}
	must(t, all[0].close())
	if err := all[0].add(dirs[0]); err == nil {
		t.Error("an agent that has ended watches a directory")
	}
	n, err := newPluginWatcher() // and from the beginning
	must(t, err)
	must(t, n.add(dirs[0]))
	must(t, os.WriteFile(filepath.Join(dirs[0], "again"), nil, 0o600))
	if event := nextEvent(t, n); filepath.Base(event.Name) != "again" {
		t.Errorf("got the event %v", event)
	}
	must(t, n.close())
}

// An agent that does not read its events must not block the others, and learns that it missed some.
func TestSlowReaderIsNotifiedOfLostEvents(t *testing.T) {
	slow, err := newPluginWatcher()
	must(t, err)
	quick, err := newPluginWatcher()
	must(t, err)
	t.Cleanup(func() { must(t, slow.close()); must(t, quick.close()) })
	slowDir, quickDir := t.TempDir(), t.TempDir()
	must(t, slow.add(slowDir))
	must(t, quick.add(quickDir))
	for i := range eventBuffer + 1 {
		listener, err := net.Listen("unix", filepath.Join(slowDir, fmt.Sprint(i)))
		must(t, err)
		must(t, listener.Close())
	}
	must(t, os.WriteFile(filepath.Join(quickDir, "s"), nil, 0o600))
	nextEvent(t, quick)
	wait.For(t, "the slow one to learn that events were lost", slow.lost)
}
