package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

// Clean finds and removes what a lab that was killed left on this machine: processes by their
// records, mounts, loop devices, cgroups, sysctls, folders. It returns a description of each thing that it removed;
// nothing if there was nothing. A lab that runs is left alone: that is ErrRunning.
func Clean(ctx context.Context, name string) ([]string, error) {
	p, err := labPaths(name)
	if err != nil {
		return nil, err
	}
	lock, err := takeLock(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	return cleanLab(ctx, p)
}

// Labs are the names of all labs of which there is something in the cache folder.
func Labs() ([]string, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(cache, "labs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing labs: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() && validName.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// cleanLab needs the lab's lock. The order matters: no process may be left that could recreate
// anything, then what the kernel holds for them, then the files.
func cleanLab(ctx context.Context, p paths) ([]string, error) {
	if _, err := os.Stat(p.dir()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var report []string
	var errs []error
	add := func(removed []string, err error) {
		report = append(report, removed...)
		errs = append(errs, err)
	}
	add(nil, killFrozen(p))
	add(endRecorded(p))
	add(endInits(p))
	add(unmountAll(p.dir()))
	add(releaseLoops(ctx, p.dir()))
	add(nil, nodes.RemoveCgroups(p.dir()))
	add(nil, nodes.RestoreSysctls(p.dir()))
	if err := errors.Join(errs...); err != nil {
		// The records stay, so that the next try finds what this one could not remove.
		return report, fmt.Errorf("cleaning lab %s: %w", p.name, err)
	}
	if err := keepLogs(p); err != nil {
		return report, err
	}
	if err := os.RemoveAll(p.dir()); err != nil {
		return report, fmt.Errorf("removing the folder of lab %s: %w", p.name, err)
	}
	return append(report, "folder "+p.dir()), nil
}

// killFrozen kills what is left of the nodes: processes of a frozen one do not end before they are thawed.
func killFrozen(p paths) error {
	var errs []error
	for _, name := range nodesOf(p) {
		node := &nodes.Node{Config: nodes.Config{Lab: p.name, Name: name, LabDir: p.dir()}}
		err := node.KillFrozen()
		if err == nil {
			err = node.Thaw()
		}
		if !errors.Is(err, fs.ErrNotExist) { // it has no cgroup any more
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// endRecorded kills every process that has a record, nodes first: they are users of all others.
func endRecorded(p paths) ([]string, error) {
	records, err := proc.Records(p.run())
	errs := []error{err}
	list := make([]proc.Record, 0, len(records))
	for _, record := range records {
		list = append(list, record)
	}
	slices.SortFunc(list, func(a, b proc.Record) int { return -strings.Compare(a.Name, b.Name) })
	var ended []string
	for _, record := range list {
		if !record.Alive() {
			continue
		}
		if err := record.End(0); err != nil {
			errs = append(errs, err)
			continue
		}
		ended = append(ended, fmt.Sprintf("process %d (%s)", record.PID, record.Name))
	}
	return ended, errors.Join(errs...)
}

// endInits ends the processes 1 of nodes whose parent is gone: they hold all others of the node.
func endInits(p paths) ([]string, error) {
	var ended []string
	var errs []error
	for _, node := range nodesOf(p) {
		inits, err := findInits(p, node)
		errs = append(errs, err)
		for _, record := range inits {
			if err := record.End(0); err != nil {
				errs = append(errs, err)
				continue
			}
			ended = append(ended, fmt.Sprintf("process %d (%s)", record.PID, record.Name))
		}
	}
	return ended, errors.Join(errs...)
}

// nodesOf are the nodes of which there is a folder.
func nodesOf(p paths) []string {
	entries, err := os.ReadDir(p.nodes())
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

// unmountAll takes off every mount below dir in this mount namespace, the deepest first. The
// nodes' own mounts lie in their namespaces and vanish with their processes.
func unmountAll(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	slices.SortFunc(mounts, func(a, b *mountinfo.Info) int { return len(b.Mountpoint) - len(a.Mountpoint) })
	var removed []string
	var errs []error
	for _, mount := range mounts {
		// Lazily: a dead FUSE server must not block the unmount.
		err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", mount.Mountpoint, err))
			continue
		}
		removed = append(removed, "mount "+mount.Mountpoint)
	}
	return removed, errors.Join(errs...)
}

// releaseLoops frees the loop devices over files below dir and waits until they are free: those of
// a node that just died go when the kernel has taken its mounts apart.
func releaseLoops(ctx context.Context, dir string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, loopsWithin)
	defer cancel()
	var released, left []string
	err := wait.PollUntilContextCancel(ctx, lookAgain, true, func(context.Context) (done bool, err error) {
		left, err = labdisk.ReleaseLoops(dir)
		for _, device := range left {
			if name := "loop device " + device; !slices.Contains(released, name) {
				released = append(released, name)
			}
		}
		return len(left) == 0, err
	})
	switch {
	case wait.Interrupted(err):
		return released, fmt.Errorf("loop devices %s are still in use after %v", strings.Join(left, ", "), loopsWithin)
	case err != nil:
		return released, fmt.Errorf("freeing loop devices: %w", err)
	}
	return released, nil
}

const loopsWithin = time.Minute

// keepLogs moves the logs out of the lab's folder, in place of those of the run before.
func keepLogs(p paths) error {
	kept := p.lastLogs()
	if err := os.RemoveAll(kept); err != nil {
		return fmt.Errorf("removing older logs: %w", err)
	}
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return fmt.Errorf("making the folder of kept logs: %w", err)
	}
	moves := map[string]string{p.logs(): "components"}
	for _, name := range nodesOf(p) {
		config := nodes.Config{Dir: p.node(name)}
		moves[config.LogDir()] = name
	}
	for from, to := range moves {
		if err := os.Rename(from, filepath.Join(kept, to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keeping the logs of lab %s: %w", p.name, err)
		}
	}
	return nil
}
