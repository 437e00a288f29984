package mounttable

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ways are how a process can use a file; see [hold]. Each leaves no other trace of it in the process.
var ways = map[string]func(path string) error{
	"open":      open,
	"rest":      func(string) error { return nil },
	"live in":   syscall.Chroot,
	"lazily":    func(path string) error { return errors.Join(open(path+"/file"), unix.Unmount(path, unix.MNT_DETACH)) },
	"in flight": inFlight,
	"map":       mapped,
	"io_uring":  registered,
	"watch":     watched,
	"mount a tmpfs and live in it": func(path string) error {
		return errors.Join(unix.Mount("at", path, "tmpfs", 0, ""), syscall.Chroot(path))
	},
	"loop":                        overLoop,
	endFirst:                      open,
	"open in a thread of its own": func(path string) error { return inThread(func() error { return open(path) }) },
}

func open(path string) error {
	_, err := unix.Open(path, unix.O_RDWR, 0)
	return err
}

// endFirst has the first thread of the process end.
const endFirst = "open and end the first thread"

// loops keeps them open.
var loops []*os.File

func overLoop(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	loop, err := attach(file)
	loops = append(loops, loop)
	return err
}

// inFlight sends the open file over a UNIX socket, where it is not received.
func inFlight(path string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(pair[0], []byte{1}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	return unix.Close(fd)
}

// mapped maps the file, and closes it.
func mapped(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	return unix.Close(fd)
}

// registered registers the file with an io_uring, and closes it.
func registered(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	var params [120]byte // struct io_uring_params
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return errno
	}
	const registerFiles = 2 // IORING_REGISTER_FILES
	files := [1]int32{int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, ring, registerFiles, uintptr(unsafe.Pointer(&files)), 1, 0, 0); errno != 0 {
		return errno
	}
	return unix.Close(fd)
}

// watched marks the file's inode, and its file system, for fanotify.
func watched(path string) error {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(
		unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN, unix.AT_FDCWD, path),
		unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN, unix.AT_FDCWD, path))
}

// inThread runs f in a thread whose files are its own.
func inThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FILES)
		if err == nil {
			err = f()
		}
		done <- err
		select {}
	}()
	return <-done
}
