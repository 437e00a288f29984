package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/labdisk"
)

// neededBytes is what a lab may need: etcd, logs, sparse volumes that get written,
// container images.
const neededBytes = 1 << 30

// preflight checks the surroundings and says in one sentence each what is wrong and what to do.
func preflight(p paths, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root for namespaces, mounts and loop devices: run it with sudo")
	}
	if err := p.checkLengths(o.Drivers, o.Nodes); err != nil {
		return err
	}
	if err := checkTools(o); err != nil {
		return err
	}
	if err := checkDevices(o); err != nil {
		return err
	}
	return checkDisk(p)
}

// checkTools looks for the programs that the lab calls, and names the packages of Debian and
// Ubuntu that hold them.
func checkTools(o Options) error {
	if o.Bare {
		return nil
	}
	return lackingTools(toolsOf(o), func(program string) bool {
		_, err := lookPath(program)
		return err == nil
	})
}

// toolsOf are the programs that a lab with these options calls, with their packages.
func toolsOf(o Options) [][2]string {
	needed := [][2]string{{"unshare", "util-linux"}, {"mount", "mount"}, {"umount", "mount"}}
	if slices.Contains(o.Drivers, labdisk.DriverDisk) {
		needed = append(needed, [2]string{"mkfs.ext4", "e2fsprogs"}, [2]string{"blkid", "util-linux"}, [2]string{"fsck", "util-linux"})
	}
	if o.NodeKind == NodeKindKubelet {
		needed = append(needed, programsOf(PartKubelets)...)
	}
	if o.BMC {
		needed = append(needed, programsOf(PartRecovery)...)
	}
	return needed
}

// lackingTools names all programs that are not installed, with what installs them.
func lackingTools(needed [][2]string, installed func(program string) bool) error {
	var programs, packages []string
	for _, tool := range needed {
		if installed(tool[0]) {
			continue
		}
		programs = append(programs, filepath.Base(tool[0]))
		if !slices.Contains(packages, tool[1]) {
			packages = append(packages, tool[1])
		}
	}
	are, them := "are", "them"
	switch len(programs) {
	case 0:
		return nil
	case 1:
		are, them = "is", "it"
	}
	return fmt.Errorf("%s %s neither in PATH nor in %s: install %s (apt-get install %s)", strings.Join(programs, ", "), are, adminFolders, them, strings.Join(packages, " "))
}

// checkDevices makes sure of FUSE and of a free loop device, where the drivers need them.
func checkDevices(o Options) error {
	if o.Nodes == 0 {
		return nil
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("the lab's storage needs FUSE, but /dev/fuse cannot be opened: load the module (modprobe fuse), or give the container the device: %w", err)
	}
	_ = fuse.Close()
	if !slices.Contains(o.Drivers, labdisk.DriverDisk) {
		return nil
	}
	return checkLoops()
}

func checkLoops() error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("the lab's disks need loop devices, but /dev/loop-control cannot be opened: load the module (modprobe loop), or give the container the device: %w", err)
	}
	defer func() { _ = control.Close() }()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return fmt.Errorf("no loop device is free: release some (losetup -a lists them, losetup -d frees one): %w", err)
	}
	device := fmt.Sprintf("/dev/loop%d", number)
	if _, err := os.Stat(device); err != nil {
		return fmt.Errorf("loop device %d is free but %s is not there: make it (mknod %s b 7 %d), or free one (losetup -d): %w",
			number, device, device, number, err)
	}
	return nil
}

// checkDisk looks at the first folder of the cache path that exists.
func checkDisk(p paths) error {
	dir := p.cache
	for {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return fmt.Errorf("asking for the free space at %s: %w", dir, err)
		}
		if free := fs.Bavail * uint64(fs.Bsize); free < neededBytes {
			return fmt.Errorf("only %d MB are free at %s, a lab needs %d MB: make room, or set BELAY_CACHE to a folder on another disk",
				free>>20, dir, neededBytes>>20)
		}
		return nil
	}
}
