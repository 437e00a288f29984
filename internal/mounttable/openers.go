package mounttable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// initPID is the process that starts all others, which is no container. Some kernels hide its files from every other process.
const initPID = 1

// Openers returns the processes that have a block device open through a device file of their own: runtimes create one for each
// container. Device files in the machine's /dev (devtmpfs) are ignored: drivers keep devices open there for as long as they are
// attached. The error names the processes whose open files may not be read, any of which may have the device open.
func Openers(device string) ([]Holder, error) {
	var machine unix.Stat_t
	if err := unix.Stat("/dev", &machine); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: "/dev", Err: err}
	}
	var holders []Holder
	var unread []error
	seen := map[int]bool{}
	err := eachThread(func(pid int, dir string) {
		if seen[pid] || sharesFiles(pid, dir) {
			return
		}
		name, err := opened(dir, device, machine.Dev)
		switch {
		case name != "":
			holders = append(holders, Holder{Process: processOf(pid), Path: name, Device: true})
		case err == nil, exiting(dir), pid == initPID:
			return
		default:
			unread = append(unread, fmt.Errorf("read the open files of process %d (%s): %w", pid, processOf(pid).Command, err))
		}
		seen[pid] = true
	})
	return holders, errors.Join(append(unread, err)...)
}

// opened returns the name by which a thread has the device open; the error is that some of its files may not be read.
func opened(dir, device string, machine uint64) (string, error) {
	files, unread := os.ReadDir(filepath.Join(dir, "fd"))
	if ended(unread) {
		unread = nil
	}
	for _, file := range files {
		path := filepath.Join(dir, "fd", file.Name())
		switch is, err := opens(path, device, machine); {
		case is:
			name, _ := os.Readlink(path)
			return name, nil
		case errors.Is(err, fs.ErrPermission):
			unread = err
		}
	}
	return "", unread
}

// opens reports whether an open file is the device. It does not access the file system, which may hang.
func opens(fd, device string, machine uint64) (bool, error) {
	if name, err := os.Readlink(fd); err != nil || !strings.HasPrefix(name, "/") {
		return false, err
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, fd, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return false, &fs.PathError{Op: "statx", Path: fd, Err: err}
	}
	return st.Mode&unix.S_IFMT == unix.S_IFBLK &&
		fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor) == device && unix.Mkdev(st.Dev_major, st.Dev_minor) != machine, nil
}

// sharesFiles reports whether a thread has the open files of the first thread of its process, as threads usually do. A first thread
// that has ended has none, while the others continue.
func sharesFiles(pid int, dir string) bool {
	thread, err := strconv.Atoi(filepath.Base(dir))
	if err != nil || thread == pid {
		return false
	}
	const kcmpFiles = 2 // KCMP_FILES
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(thread), kcmpFiles, 0, 0, 0)
	return errno == 0 && order == 0
}

// exiting reports whether a thread has ended, or is a zombie, which has no files.
func exiting(dir string) bool {
	raw, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return ended(err)
	}
	_, after, _ := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	return strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}
