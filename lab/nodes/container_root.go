package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// enterRoot makes the container's root and moves this process into it. The root is
// an overlay over the machine's own root file system, so that a shell is there; writes
// go to the container's directory. All other mounts of the node are released,
// so that a volume of another pod is not kept busy by this one's namespace.
func enterRoot(dir string, spec containerSpec) error {
	// Unmounts on the node still reach us until the old root is gone; ours do not reach the node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach the container's mounts from the node's: %w", err)
	}
	root, err := mountRoot(dir)
	if err != nil {
		return err
	}
	for _, mount := range spec.Mounts {
		if err := mount.apply(root); err != nil {
			return err
		}
	}
	if spec.ReadOnlyRoot {
		if err := unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make the container's root read-only: %w", err)
		}
	}
	return pivot(root)
}

// mountRoot mounts the overlay; where the container's directory cannot hold an
// upper directory, memory holds it.
func mountRoot(dir string) (string, error) {
	base := filepath.Join(dir, "root")
	make := func() error {
		for _, name := range []string{"upper", "work", "merged"} {
			if err := os.MkdirAll(filepath.Join(base, name), 0o755); err != nil {
				return fmt.Errorf("make the container's root: %w", err)
			}
		}
		return nil
	}
	if err := make(); err != nil {
		return "", err
	}
	err := mountOverlay("/", base)
	if err != nil {
		if err := unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil {
			return "", fmt.Errorf("mount memory for the container's root: %w", err)
		}
		if err := make(); err != nil {
			return "", err
		}
		err = mountOverlay("/", base)
	}
	if err != nil {
		return "", fmt.Errorf("mount the container's root: %w", err)
	}
	root := filepath.Join(base, "merged")
	for _, kernel := range []string{"/proc", "/sys"} {
		if err := unix.Mount(kernel, filepath.Join(root, kernel), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return "", fmt.Errorf("mount %s into the container: %w", kernel, err)
		}
	}
	for dir, options := range map[string]string{"tmp": "mode=1777", "dev": "mode=755"} {
		if err := unix.Mount("tmpfs", filepath.Join(root, dir), "tmpfs", 0, options); err != nil {
			return "", fmt.Errorf("mount the container's /%s: %w", dir, err)
		}
	}
	return root, makeDevices(filepath.Join(root, "dev"))
}

// makeDevices fills the container's /dev with what every program expects; the
// machine's own devices are not for it.
func makeDevices(dir string) error {
	const memory, terminals = 1, 5
	for name, number := range map[string]uint64{
		"null": unix.Mkdev(memory, 3), "zero": unix.Mkdev(memory, 5), "full": unix.Mkdev(memory, 7),
		"random": unix.Mkdev(memory, 8), "urandom": unix.Mkdev(memory, 9), "tty": unix.Mkdev(terminals, 0),
	} {
		file := filepath.Join(dir, name)
		if err := unix.Mknod(file, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("make /dev/%s of the container: %w", name, err)
		}
		if err := os.Chmod(file, 0o666); err != nil { // mknod obeys the umask
			return fmt.Errorf("make /dev/%s of the container: %w", name, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("make /dev/%s of the container: %w", name, err)
		}
	}
	return nil
}

// apply binds one thing of the node into the container's root.
func (b bind) apply(root string) error {
	target, err := inside(root, b.Target)
	if err != nil {
		return err
	}
	info, err := os.Stat(b.Source)
	if err != nil {
		return fmt.Errorf("look at the source of the mount at %s: %w", b.Target, err)
	}
	if b.Device {
		return b.makeDevice(target)
	}
	if err := makeTarget(target, info.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(b.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", b.Source, b.Target, err)
	}
	if !b.ReadOnly {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", b.Target, err)
	}
	return nil
}

// makeDevice makes a device file of the container's own for the device of Source.
func (b bind) makeDevice(target string) error {
	var stat unix.Stat_t
	if err := unix.Stat(b.Source, &stat); err != nil {
		return fmt.Errorf("look at device for %s: %w", b.Target, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("volume for %s is no block device: %s", b.Target, b.Source)
	}
	mode := uint32(unix.S_IFBLK | 0o660)
	if b.ReadOnly {
		mode = unix.S_IFBLK | 0o440
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("make directory of device %s: %w", b.Target, err)
	}
	if err := unix.Mknod(target, mode, int(stat.Rdev)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make device %s: %w", b.Target, err)
	}
	return nil
}

func makeTarget(target string, dir bool) error {
	if dir {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	file, err := os.OpenFile(target, os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return file.Close()
}

// inside is the path of a container's file as seen from the node.
func inside(root, path string) (string, error) {
	if !filepath.IsAbs(path) || strings.Contains(path, "..") {
		return "", fmt.Errorf("path %q in the container is not absolute and plain", path)
	}
	return filepath.Join(root, path), nil
}

// pivot makes root the root and releases everything else.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter the container's root: %w", err)
	}
	// With both the same, the old root lies on top of the new one until it is unmounted.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change to the container's root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the mounts of the node: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter the container's root: %w", err)
	}
	return nil
}
