package mounttable

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Reader reads the mount tables of all processes that it can see: those of its own pid namespace and below.
type Reader struct {
	// reading is held while the tables are read.
	reading sync.Mutex

	mu sync.Mutex
	// next is the reading that has not begun. Guarded by mu.
	next *reading
}

// reading is one pass over all processes, for all callers from before it began.
type reading struct {
	done  chan struct{}
	table *Table
	err   error
}

// Read returns the tables as of one time after the call began. Callers during a reading share the next one.
func (r *Reader) Read() (*Table, error) {
	r.mu.Lock()
	mine, first := r.next, r.next == nil
	if first {
		mine = &reading{done: make(chan struct{})}
		r.next = mine
	}
	r.mu.Unlock()
	if first {
		r.reading.Lock()
		r.mu.Lock()
		r.next = nil
		r.mu.Unlock()
		mine.table, mine.err = read()
		r.reading.Unlock()
		close(mine.done)
	}
	<-mine.done
	return mine.table, mine.err
}

// Process is a running process, as far as it could be read.
type Process struct {
	PID int
	// Command is its short name, and Cgroup the path of its control group, where runtimes put the pod's UID and the container's ID.
	Command, Cgroup string
}

// namespace is what the processes of one mount namespace with one root see.
type namespace struct {
	name string
	// process is the one that has run longest.
	process Process
	started uint64 // see startTime
	entries []entry
}

// seenBy names the process if it has run longer than the one before: a short-lived child may end at once, while the namespace and its
// mounts stay.
func (n *namespace) seenBy(pid int) {
	if pid == n.process.PID {
		return // another thread
	}
	started := startedAt(pid)
	if n.process.PID == 0 || cmp.Or(cmp.Compare(started, n.started), cmp.Compare(pid, n.process.PID)) < 0 {
		n.started, n.process = started, processOf(pid)
	}
}

// Table is what was mounted at one time, in all mount namespaces.
type Table struct {
	own    []entry
	others []namespace
	// unread are the namespaces that could not be read.
	unread []error
}

func read() (*Table, error) {
	t := &Table{}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil {
		t.own, err = parse(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("read the mount namespace: %w", err)
	}
	seen := map[string]int{} // indexes of others
	err = eachThread(func(pid int, dir string) {
		name, key, err := namespaceOf(dir)
		at, known := seen[key]
		switch {
		case err == nil && name == own, ended(err):
			return
		case known:
			t.others[at].seenBy(pid)
			return
		}
		found := namespace{name: name}
		raw, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if err == nil {
			found.entries, err = parse(raw)
		}
		switch {
		case ended(err):
			return // another of its threads may still exist
		case err != nil:
			t.unread = append(t.unread, fmt.Errorf("read the mount table of process %d: %w", pid, err))
			return
		}
		if key == "" {
			// A namespace that may not be identified can still be read. Its mounts identify it, because the number of a mount is
			// unique.
			if key = firstMount(found.entries); key == firstMount(t.own) {
				return
			}
			if at, known := seen[key]; known {
				t.others[at].seenBy(pid)
				return
			}
			found.name = "of process " + strconv.Itoa(pid)
		}
		seen[key] = len(t.others)
		found.seenBy(pid)
		t.others = append(t.others, found)
	})
	return t, err
}

// firstMount and the number of mounts identify a namespace and a root in it.
func firstMount(entries []entry) string {
	if len(entries) == 0 {
		return "none"
	}
	return fmt.Sprint(entries[0].id, "+", len(entries))
}

// eachThread visits all threads: they may have their own mount namespaces, and outlive the first one.
func eachThread(visit func(pid int, dir string)) error {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	for _, process := range processes {
		pid, err := strconv.Atoi(process.Name())
		if err != nil {
			continue
		}
		tasks := filepath.Join("/proc", process.Name(), "task")
		threads, err := os.ReadDir(tasks)
		if err != nil && !ended(err) {
			return fmt.Errorf("list the threads of process %d: %w", pid, err)
		}
		for _, thread := range threads {
			visit(pid, filepath.Join(tasks, thread.Name()))
		}
	}
	return nil
}

// namespaceOf returns the name of a thread's mount namespace, and a key for what the thread sees of it, which depends on its root.
func namespaceOf(dir string) (name, key string, err error) {
	if name, err = os.Readlink(filepath.Join(dir, "ns/mnt")); err != nil {
		return "", "", err
	}
	root, err := os.Readlink(filepath.Join(dir, "root"))
	if err != nil {
		return "", "", err
	}
	return name, name + root, nil
}

// ended reports whether a process no longer exists, or has no mounts because it is exiting.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL)
}

func processOf(pid int) Process {
	p := Process{PID: pid}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if raw, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
		p.Command = strings.TrimSpace(string(raw))
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return p
	}
	for line := range strings.Lines(string(raw)) {
		// The longest: some hierarchies of version 1 may not be in use.
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && len(parts[2]) > max(1, len(p.Cgroup)) {
			p.Cgroup = parts[2]
		}
	}
	return p
}

// startedAt returns the startTime of a process. One that cannot be read counts as the latest.
func startedAt(pid int) uint64 {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return math.MaxUint64
	}
	return startTime(string(raw))
}

// startTime returns field 22 of /proc/pid/stat, in clock ticks since boot. The command in field 2 may contain spaces and parentheses.
func startTime(stat string) uint64 {
	if fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]); len(fields) > 19 {
		if ticks, err := strconv.ParseUint(fields[19], 10, 64); err == nil {
			return ticks
		}
	}
	return math.MaxUint64
}
