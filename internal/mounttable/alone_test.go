package mounttable

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inMountNamespace is set for a test that runs in a mount namespace of its own.
const inMountNamespace = "MOUNTTABLE_TEST_IN_MOUNT_NAMESPACE"

// alone runs the test again in a process with a mount namespace of its own, and reports whether this is that process. However it
// ends, nothing of it is left: its mounts go with the namespace, its loop devices with their last user.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inMountNamespace) != "" {
		must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inMountNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // for what it has started
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// disk is an ext4 file system on a loop device, mounted below a shared mount.
type disk struct {
	root, volume string
	device       string // its path
	loop         *os.File
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	root, err := os.MkdirTemp("", "mounttable-") //nolint:usetesting // a path in the options of overlayfs has no comma
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	d := &disk{root: root}
	must(t, unix.Mount("root", d.root, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(d.root, unix.MNT_DETACH) })
	must(t, unix.Mount("", d.root, "", unix.MS_SHARED, ""))
	image := filepath.Join(d.root, "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 48<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	must(t, err)
	d.loop, err = attach(file)
	must(t, err)
	d.device = d.loop.Name()
	t.Cleanup(func() { _ = d.loop.Close() })
	d.volume = filepath.Join(d.root, "volume")
	must(t, os.Mkdir(d.volume, 0o750))
	must(t, unix.Mount(d.device, d.volume, "ext4", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(d.volume, unix.MNT_DETACH) })
	must(t, os.Mkdir(filepath.Join(d.volume, "sub"), 0o750))
	must(t, os.WriteFile(filepath.Join(d.volume, "file"), make([]byte, 1<<20), 0o750))
	return d
}

// attach puts a loop device over a file, which detaches itself when it is no longer used.
func attach(file *os.File) (*os.File, error) {
	defer file.Close() // the loop device has it
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &config); err == nil {
			return loop, nil
		}
		_ = loop.Close()
		if !errors.Is(err, unix.EBUSY) { // else another process took it first
			return nil, err
		}
	}
}

// busy reports whether a file system on the device is still mounted somewhere.
func (d *disk) busy(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Open(d.device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return true
	}
	must(t, err)
	must(t, unix.Close(fd))
	return false
}

// hold is set for a process of these tests that uses a file in some way.
const hold = "MOUNTTABLE_TEST_HOLD"

func init() {
	if os.Getenv(hold) != "" {
		runtime.LockOSThread() // the first thread
	}
}

// TestMain runs what [hold] names.
func TestMain(m *testing.M) {
	how, path, ok := strings.Cut(os.Getenv(hold), ":")
	if !ok {
		os.Exit(m.Run())
	}
	if err := ways[how](path); err != nil {
		fmt.Fprintln(os.Stderr, how, path, err)
		os.Exit(1)
	}
	go func() {
		for how == endFirst && !exiting(fmt.Sprintf("/proc/self/task/%d", os.Getpid())) {
			runtime.Gosched()
		}
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	if how == endFirst {
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	select {}
}
