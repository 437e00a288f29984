package mounttable

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Device returns the block device at a path, as major:minor; empty if there is none.
func Device(path string) (string, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case ended(err): // it does not exist
		return "", nil
	case err != nil:
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFBLK:
		return "", nil
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// Openers returns the processes that have a block device open through a device file of their own: runtimes create one for each
// container. Device files in the machine's /dev (devtmpfs) are ignored: drivers keep devices open there for as long as they are
// attached.
func Openers(device string) ([]Holder, error) {
	var machine unix.Stat_t
	if err := unix.Stat("/dev", &machine); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: "/dev", Err: err}
	}
	var holders []Holder
	seen := map[int]bool{}
	err := eachThread(func(pid int, dir string) {
		if seen[pid] || filepath.Base(dir) != fmt.Sprint(pid) {
			return // threads usually share their files
		}
		files, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			return
		}
		for _, file := range files {
			if path := filepath.Join(dir, "fd", file.Name()); opens(path, device, machine.Dev) {
				name, _ := os.Readlink(path)
				seen[pid] = true
				holders = append(holders, Holder{Process: processOf(pid), Path: name, Device: true})
				return
			}
		}
	})
	return holders, err
}

// opens reports whether an open file is the device. It does not access the file system, which may hang.
func opens(fd, device string, machine uint64) bool {
	if name, err := os.Readlink(fd); err != nil || !strings.HasPrefix(name, "/") {
		return false
	}
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, fd, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK &&
		fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor) == device && unix.Mkdev(st.Dev_major, st.Dev_minor) != machine
}
