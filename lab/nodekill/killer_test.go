package nodekill

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"belay.dev/belay/internal/nodevolume"
)

// temporary begins the names of records that are not whole yet (internal/mount).
const temporary = ".tmp-"

// readRecord reads one; ok is false if it is not there, or empty or cut off.
func readRecord(path string) (r nodevolume.Record, ok bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return r, false
	}
	r, err = nodevolume.DecodeRecord(raw)
	return r, err == nil
}

// methodOf is the call that a record is for: the one that mounts, or, while it is leaving, the one that unmounts.
func methodOf(r nodevolume.Record) Method {
	switch {
	case r.Kind == nodevolume.StageKind && r.Leaving:
		return Unstage
	case r.Kind == nodevolume.StageKind:
		return Stage
	case r.Leaving:
		return Unpublish
	default:
		return Publish
	}
}

// blow is one kill: when it was sent, and how it went.
type blow struct {
	at  time.Time
	err error
}

// killer kills the agent at the moment of the plan that it is armed with.
type killer struct {
	kill func() error

	mu sync.Mutex
	// Under mu:
	armed  *Plan // nil when none is, or it has struck
	struck chan blow
}

// arm returns the channel that reports how the kill went, once the agent is dead.
func (k *killer) arm(p Plan) <-chan blow {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.struck = make(chan blow, 1)
	k.armed = &p
	if p.Moment == AnyTime {
		time.AfterFunc(p.Delay, func() { k.at("", AnyTime) })
	}
	return k.struck
}

// disarm reports whether the kill has not begun, and then it never will.
func (k *killer) disarm() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.armed != nil
	k.armed = nil
	return was
}

// at kills if it is the moment. The call waits in the meantime, so that none of its work is done afterwards.
func (k *killer) at(method Method, moment Moment) {
	k.mu.Lock()
	p := k.armed
	if p == nil || !p.strikesAt(moment) || (moment != AnyTime && p.Method != method) {
		k.mu.Unlock()
		return
	}
	k.armed = nil
	struck := k.struck
	k.mu.Unlock()
	if moment != AnyTime {
		time.Sleep(p.Delay) // the time that the plan names, not one that a condition needs
	}
	at := time.Now()
	struck <- blow{at: at, err: k.kill()}
}

// watchRecords tells the killer of records that are being written and that are in place.
func (k *killer) watchRecords(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Add(dir); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for event := range watcher.Events {
			switch name := filepath.Base(event.Name); {
			case event.Has(fsnotify.Create):
				k.recordAppeared(dir, name)
			case event.Has(fsnotify.Write) && !strings.HasPrefix(name, temporary):
				k.recordMarked(dir, name)
			}
		}
	})
	t.Cleanup(func() {
		if err := watcher.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
}

// recordMarked: a record is marked in place when the unmount begins.
func (k *killer) recordMarked(dir, name string) {
	if r, ok := readRecord(filepath.Join(dir, name)); ok && r.Leaving {
		k.at(methodOf(r), RecordWritten)
	}
}

// recordAppeared finds out for which call a record is written.
func (k *killer) recordAppeared(dir, name string) {
	final, begun := strings.CutPrefix(name, temporary)
	r, ok := readRecord(filepath.Join(dir, final))
	switch {
	case begun && !ok:
		k.at(methodOf(nodevolume.Record{Kind: kindOf(final)}), RecordBegun)
	case !begun && ok && !r.Confirmed:
		k.at(methodOf(r), RecordWritten)
	}
}

// kindOf is the kind of a record of that file name.
func kindOf(name string) string {
	if strings.Contains(name, "."+nodevolume.StageKind+".") {
		return nodevolume.StageKind
	}
	return nodevolume.PublishKind
}
