package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// Paths that belong to the machine and that a node gets of its own.
const (
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
	productUUID = "/sys/class/dmi/id/product_uuid"
)

// cgroupPatience is how long a killed process may take to leave its cgroup.
const cgroupPatience = 30 * time.Second

// setUpMachine makes the namespaces look like a machine that has just been switched
// on: mounts that its processes share, a boot ID of this power-on, a system UUID
// that stays, and directories of its own where programs insist on fixed paths.
func setUpMachine(config Config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the node's mounts: %w", err)
	}
	for _, dir := range []string{config.RootDir(), config.LogDir(), config.FUSEDir(), machineDir(config)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make directory of node %s: %w", config.Name, err)
		}
	}
	if err := newBootID(config); err != nil {
		return err
	}
	if err := systemUUID(config); err != nil {
		return err
	}
	if err := joinNodeCgroup(config); err != nil {
		return err
	}
	if config.Kind != KindKubelet {
		return nil
	}
	if coverSysctls(config) != nil {
		// Where the kernel does not let us, kubelet changes the machine and the lab restores it. The record is in the machine's /run.
		if err := saveSysctls(config.LabDir); err != nil {
			return err
		}
	}
	return coverFixedPaths(config)
}

// joinNodeCgroup begins with cgroups that are new, as after a boot: kubelet looks at
// every one that is left for seconds before it does anything else.
func joinNodeCgroup(config Config) error {
	var err error
	// Processes of the last power-on may still be dying.
	within(cgroupPatience, func() bool {
		err = (&Node{Config: config}).RemoveCgroup()
		return err == nil
	})
	if err != nil {
		return err
	}
	if err := makeCgroup(config.Cgroup()); err != nil {
		return err
	}
	return joinCgroup(config.Cgroup())
}

// machineDir holds what identifies the machine.
func machineDir(config Config) string { return filepath.Join(config.Dir, "machine") }

// newBootID puts a fresh ID where every program looks for it: a node whose power came
// back is a machine that booted, though the kernel below it did not.
func newBootID(config Config) error {
	file := filepath.Join(machineDir(config), "boot_id")
	if err := os.WriteFile(file, []byte(uuid.NewString()+"\n"), 0o444); err != nil {
		return fmt.Errorf("write boot ID: %w", err)
	}
	if err := unix.Mount(file, bootIDFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount boot ID: %w", err)
	}
	return nil
}

const machineUUIDFile = "product_uuid"

// MachineUUID is the system UUID of the node whose folder this is. The machine gets it when it is first asked for, and keeps it.
func MachineUUID(dir string) (uuid.UUID, error) {
	file := filepath.Join(dir, "machine", machineUUIDFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return uuid.UUID{}, fmt.Errorf("make directory of the machine: %w", err)
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(file, []byte(uuid.NewString()+"\n"), 0o444); err != nil {
			return uuid.UUID{}, fmt.Errorf("write system UUID: %w", err)
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("read system UUID: %w", err)
	}
	machine, err := uuid.Parse(strings.TrimSpace(string(content)))
	if err != nil {
		return machine, fmt.Errorf("read system UUID: %w", err)
	}
	return machine, nil
}

// systemUUID gives the machine the UUID that it was made with.
func systemUUID(config Config) error {
	if _, err := MachineUUID(config.Dir); err != nil {
		return err
	}
	file := filepath.Join(machineDir(config), machineUUIDFile)
	err := unix.Mount(file, productUUID, "", unix.MS_BIND, "")
	if errors.Is(err, unix.ENOENT) { // no DMI on this machine: kubelet reads the machine ID instead (cadvisor getSystemUUID)
		err = unix.Mount(file, "/etc/machine-id", "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("mount system UUID over %s or /etc/machine-id: this machine needs one of the two (systemd-machine-id-setup makes the latter): %w", productUUID, err)
	}
	return nil
}

// readMachineFile reads an ID that setUpMachine wrote.
func readMachineFile(config Config, name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(machineDir(config), name))
	if err != nil {
		return "", fmt.Errorf("read identity of node %s: %w", config.Name, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// coverFixedPaths gives containerd and kubelet their own /run, /var/lib
// and /var/log: both use paths there that no flag changes (device plugins,
// container log links). Nothing of it is seen outside of the node.
func coverFixedPaths(config Config) error {
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		if strings.HasPrefix(config.LabDir+"/", dir+"/") {
			return fmt.Errorf("the lab's folder %s lies below %s, which a kubelet node covers: "+
				"put the cache folder (BELAY_CACHE) elsewhere", config.LabDir, dir)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount a %s of the node's own: %w", dir, err)
		}
	}
	return nil
}
