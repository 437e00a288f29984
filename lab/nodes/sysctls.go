package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/jsonfile"
)

// kubeletSysctls are the machine-wide settings that kubelet writes at its start
// (k/k pkg/kubelet/cm setupKernelTunables).
var kubeletSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// coverSysctls puts files of the node's own over the settings, so that what kubelet
// writes there changes nothing on the machine. Only inside the node, and gone with it.
func coverSysctls(config Config) error {
	for _, name := range kubeletSysctls {
		path := filepath.Join(sysctlRoot, name)
		value, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", name, err)
		}
		cover := filepath.Join(machineDir(config), strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(cover, value, 0o644); err != nil { //nolint:gosec // names from the table above
			return fmt.Errorf("write the node's own sysctl %s: %w", name, err)
		}
		if err := unix.Mount(cover, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover sysctl %s: %w", name, err)
		}
	}
	return nil
}

// sysctlRecord is the file in the lab's folder that holds what was there before.
const sysctlRecord = "sysctls.json"

const sysctlRoot = "/proc/sys"

// saveSysctls records what kubelet is about to change, where it could not be covered,
// unless a record is there. The record is written before the first kubelet of the lab starts and outlives the lab
// if it is killed.
func saveSysctls(labDir string) error {
	return withSysctlLock(labDir, func(file string) error {
		if _, err := os.Stat(file); err == nil {
			return nil
		}
		values := map[string]string{}
		for _, name := range kubeletSysctls {
			raw, err := os.ReadFile(filepath.Join(sysctlRoot, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read sysctl %s: %w", name, err)
			}
			values[name] = strings.TrimSpace(string(raw))
		}
		return jsonfile.Write(file, values)
	})
}

// RestoreSysctls writes back what a node of the lab recorded that could not cover them, and removes the record. No
// record, nothing to do.
func RestoreSysctls(labDir string) error {
	return withSysctlLock(labDir, func(file string) error {
		values := map[string]string{}
		switch err := jsonfile.Read(file, &values); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("read recorded sysctls: %w", err)
		}
		for name, value := range values {
			path := filepath.Join(sysctlRoot, name)
			now, err := os.ReadFile(path)
			if err == nil && strings.TrimSpace(string(now)) == value {
				continue
			}
			if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
				return fmt.Errorf("restore sysctl %s to %s: %w", name, value, err)
			}
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove record of sysctls: %w", err)
		}
		return nil
	})
}

// withSysctlLock keeps the nodes of one lab, which start side by side, from
// recording what a kubelet has changed already.
func withSysctlLock(labDir string, work func(file string) error) error {
	lock, err := os.OpenFile(filepath.Join(labDir, sysctlRecord+".lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the lab's folder is gone, and the record with it
	}
	if err != nil {
		return fmt.Errorf("open lock of recorded sysctls: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock recorded sysctls: %w", err)
	}
	return work(filepath.Join(labDir, sysctlRecord))
}
