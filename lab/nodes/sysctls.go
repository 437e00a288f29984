package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// sysctlRoot has the settings of the machine, and sysctlRecord says of the whole machine which of them labs have changed, and which labs need
// them so. It lies where a boot of the machine resets it together with the settings. Tests have settings of their own.
var (
	sysctlRoot   = "/proc/sys"
	sysctlRecord = "/run/belay-sysctls.json"
)

// heldSysctl is a changed setting.
type heldSysctl struct {
	// Before is what it was before the first lab changed it.
	Before string `json:"before"`
	// Holders are the folders of the labs that need it as it is.
	Holders []string `json:"holders"`
}

// heldSysctls are the changed settings by name.
type heldSysctls map[string]*heldSysctl

// hold records that a lab needs a setting as it is from now on, or as it changes it next.
func (h heldSysctls) hold(labDir, name, now string) {
	if h[name] == nil {
		h[name] = &heldSysctl{Before: now}
	}
	if held := h[name]; !slices.Contains(held.Holders, labDir) {
		held.Holders = append(held.Holders, labDir)
	}
}

// saveSysctls records what kubelet is about to change, where it could not be covered. The record is written before the first kubelet of the
// lab starts and outlives the lab if it is killed.
func saveSysctls(labDir string) error {
	return withHeldSysctls(func(held heldSysctls) error {
		for _, name := range kubeletSysctls {
			now, err := readSysctl(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			held.hold(labDir, name, now)
		}
		return jsonfile.Write(sysctlRecord, held)
	})
}

// RestoreSysctls ends what a lab holds. A setting that no other lab holds is written back. A lab whose folder is gone holds nothing.
func RestoreSysctls(labDir string) error {
	// Only root changes settings, so no other user has any to restore.
	if _, err := os.Stat(sysctlRecord); errors.Is(err, fs.ErrNotExist) || os.Geteuid() != 0 {
		return nil
	}
	return withHeldSysctls(func(held heldSysctls) error {
		for name, setting := range held {
			setting.Holders = slices.DeleteFunc(setting.Holders, func(holder string) bool {
				_, err := os.Stat(holder)
				return holder == labDir || errors.Is(err, fs.ErrNotExist)
			})
			if len(setting.Holders) > 0 {
				continue
			}
			if now, err := readSysctl(name); err != nil || now != setting.Before {
				if err := os.WriteFile(filepath.Join(sysctlRoot, name), []byte(setting.Before), 0o644); err != nil {
					return fmt.Errorf("restore sysctl %s to %s: %w", name, setting.Before, err)
				}
			}
			delete(held, name)
		}
		if len(held) > 0 {
			return jsonfile.Write(sysctlRecord, held)
		}
		if err := os.Remove(sysctlRecord); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record of sysctls: %w", err)
		}
		return nil
	})
}

func readSysctl(name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(sysctlRoot, name))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// withHeldSysctls reads the record for work, which writes it. Labs and nodes, which start side by side, take turns. The lock is on the record's
// folder: a file for it would be left on the machine.
func withHeldSysctls(work func(heldSysctls) error) error {
	lock, err := os.Open(filepath.Dir(sysctlRecord))
	if err != nil {
		return fmt.Errorf("open lock of recorded sysctls: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock recorded sysctls: %w", err)
	}
	held := heldSysctls{}
	if err := jsonfile.Read(sysctlRecord, &held); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read recorded sysctls: %w", err)
	}
	return work(held)
}
