package labdisk

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseLoops frees every loop device of this machine whose backing file lies, or lay, under the folder prefix, and
// returns their paths. It is for what a killed node leaves: while its mounts still unwind, a device may only be marked to
// be freed by its last user. Needs root.
func ReleaseLoops(prefix string) ([]string, error) {
	if real, err := filepath.EvalSymlinks(prefix); err == nil {
		prefix = real // the kernel shows paths without symbolic links
	}
	loops, err := listLoops()
	if err != nil {
		return nil, err
	}
	var freed []string
	var errs []error
	for _, l := range loops {
		mine := func(l loop) bool { return under(prefix, l.backing) }
		if !mine(l) {
			continue
		}
		if err := l.clear(mine); err != nil {
			errs = append(errs, err)
			continue
		}
		freed = append(freed, l.device)
	}
	return freed, errors.Join(errs...)
}

// loop is a loop device that is bound to a file.
type loop struct {
	device  string // /dev/loop3
	backing string // as sysfs shows it
}

func listLoops() ([]loop, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var loops []loop
	for _, f := range files {
		l := loop{device: "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(f)))}
		if l.readBacking() == nil {
			loops = append(loops, l)
		} // else it was freed since it was listed
	}
	return loops, nil
}

// readBacking reads to which file the device is bound now.
func (l *loop) readBacking() error {
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(l.device), "loop/backing_file"))
	l.backing = string(bytes.TrimSuffix(b, []byte("\n")))
	return err
}

// under reports whether the backing file of a loop device lies under the folder. When the FUSE mount that holds the file
// is gone the kernel shows the path inside that mount only; its first element is the escaped path of the mount, for just
// this purpose (see realm).
func under(folder, backing string) bool {
	folder = strings.TrimSuffix(filepath.Clean(folder), "/") + "/"
	if strings.HasPrefix(backing, folder) {
		return true
	}
	first, rest, ok := strings.Cut(strings.TrimPrefix(backing, "/"), "/")
	if !ok || rest == "" {
		return false
	}
	mountpoint, err := url.PathUnescape(first)
	return err == nil && filepath.IsAbs(mountpoint) && strings.HasPrefix(mountpoint+"/", folder)
}

// realm is the directory, directly under the FUSE mount at mountpoint, that holds the node's volumes.
func realm(mountpoint string) string { return url.PathEscape(mountpoint) }

// clear unbinds the device; one that is still open or mounted is unbound when its last user closes it. A device that
// was freed since it was listed, and is another's by now, is left alone: mine decides.
func (l loop) clear(mine func(loop) bool) error {
	f, err := os.OpenFile(l.device, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open loop device %s of %s: %w", l.device, l.backing, err)
	}
	defer func() { _ = f.Close() }()
	// While it is open its file does not change.
	if l.readBacking() != nil || !mine(l) {
		return nil
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("free loop device %s of %s: %w", l.device, l.backing, err)
	}
	return nil
}
