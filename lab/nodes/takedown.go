package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"belay.dev/belay/lab/labdisk"
)

// Grace of each step of an orderly stop.
const (
	agentGrace     = 3 * time.Second
	containerGrace = 8 * time.Second
	unmountGrace   = 15 * time.Second
	driverGrace    = 5 * time.Second
	takeDownLook   = 10 * time.Millisecond
)

// takeDown stops the node as a machine that shuts down: first what would start
// pods again, then the pods, then the mounts, and last the driver, without which a
// file system on its devices cannot be unmounted.
func takeDown(config Config, kept *children, log *slog.Logger, keepersEnd func()) error {
	keepersGone := make(chan struct{})
	go func() { keepersEnd(); close(keepersGone) }()

	endChild(kept, ChildAgent, agentGrace)
	signalAll(working(), unix.SIGTERM)
	within(containerGrace, func() bool { return len(working()) == 0 })
	signalAll(processes(), unix.SIGKILL)
	within(containerGrace, func() bool { return len(processes()) == 0 })

	var problems []error
	unmounted := make(chan error, 1)
	go func() {
		err := unmountBelow(config)
		_, loops := labdisk.ReleaseLoops(config.FUSEDir())
		unmounted <- errors.Join(err, loops)
	}()
	select {
	case err := <-unmounted:
		problems = append(problems, err)
	case <-time.After(unmountGrace):
		problems = append(problems, fmt.Errorf("unmount volumes of node %s: not done after %v", config.Name, unmountGrace))
	}
	endChild(kept, ChildDriver, driverGrace)
	// The driver's adapter outlives the driver, because volumes may be in use. Without its mount it ends.
	if err := unix.Unmount(config.FUSEDir(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		problems = append(problems, fmt.Errorf("unmount storage of node %s: %w", config.Name, err))
	}
	select {
	case <-keepersGone:
	case <-time.After(driverGrace):
		log.Warn("a keeper did not end")
	}
	return errors.Join(problems...)
}

// endChild sends SIGTERM, and after the grace SIGKILL.
func endChild(kept *children, name string, grace time.Duration) {
	gone := func() bool { return kept.pid(name) == 0 }
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if gone() {
			return
		}
		_ = kept.signal(name, sig) // it may end in between
		within(grace, gone)
	}
}

// within looks until done says so or the time is over.
func within(limit time.Duration, done func() bool) {
	condition := func(context.Context) (bool, error) { return done(), nil }
	_ = wait.PollUntilContextTimeout(context.Background(), takeDownLook, limit, true, condition) // the caller looks again
}

// processes are the node's live processes, but for this one and the storage: without
// the driver and its adapter a file system cannot be unmounted.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || isStorage(pid) {
			continue
		}
		stat, err := procFile(pid, "stat")
		if err != nil {
			continue
		}
		_, rest, found := strings.Cut(stat, ") ")
		if found && rest[0] != 'Z' && rest[0] != 'X' {
			pids = append(pids, pid)
		}
	}
	return pids
}

func procFile(pid int, name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	return string(raw), err
}

// isStorage reports whether a process is `belay-lab labdisk ...`.
func isStorage(pid int) bool {
	line, err := procFile(pid, "cmdline")
	args := strings.Split(line, "\x00")
	return err == nil && len(args) > 1 && args[1] == "labdisk"
}

// working are the processes that do a pod's work: not the runtime and its shims, which
// stay when their containers have ended.
func working() []int {
	return slices.DeleteFunc(processes(), func(pid int) bool {
		name, err := procFile(pid, "comm")
		return err != nil || strings.HasPrefix(name, "containerd")
	})
}

func signalAll(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, sig) // it may be gone by now
	}
}

// unmountBelow unmounts all that is mounted in the node's folder, the last mounted
// first, but for the driver's FUSE mount, which the driver unmounts.
func unmountBelow(config Config) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(config.Dir))
	if err != nil {
		return fmt.Errorf("list mounts of node %s: %w", config.Name, err)
	}
	var problems []error
	for _, mount := range slices.Backward(mounts) {
		if mount.Mountpoint == config.FUSEDir() {
			continue
		}
		if err := unix.Unmount(mount.Mountpoint, 0); err == nil || errors.Is(err, unix.EINVAL) {
			continue
		}
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			problems = append(problems, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
		}
	}
	return errors.Join(problems...)
}
