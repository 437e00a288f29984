package labdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// loopMajor is the block device number of the kernel's loop driver.
const loopMajor = 7

// How often a free loop device may be taken by another process between asking for it and binding it, and how long and how
// often to look whether a device that was freed is gone: its last user may still be closing it.
const (
	loopAttempts  = 100
	loopPatience  = 30 * time.Second
	loopLookAgain = 5 * time.Millisecond
)

// errNoLoop says what to do when the machine is out of loop devices.
var errNoLoop = errors.New("no free loop device on this machine: run `modprobe loop`, or free some (`losetup -a` lists them)")

// bindLoop binds a free loop device to the file. With autoclear the device is freed when its last user closes it: the
// caller holds the open device until a mount does.
func bindLoop(backing string, readOnly, autoclear bool) (*os.File, error) {
	mode := os.O_RDWR
	config := unix.LoopConfig{}
	if readOnly {
		mode = os.O_RDONLY
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if autoclear {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(backing))
	file, err := os.OpenFile(backing, mode, 0)
	if err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	defer func() { _ = file.Close() }()
	config.Fd = uint32(file.Fd())
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoLoop, err)
	}
	defer func() { _ = control.Close() }()
	for range loopAttempts {
		device, err := bindFreeLoop(int(control.Fd()), mode, &config)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
	return nil, fmt.Errorf("bind a loop device to %s: %d in a row were taken by others: %w", backing, loopAttempts, errNoLoop)
}

// bindFreeLoop returns EBUSY when another process was faster.
func bindFreeLoop(control, mode int, config *unix.LoopConfig) (*os.File, error) {
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoLoop, err)
	}
	path := fmt.Sprintf("/dev/loop%d", n)
	device, err := os.OpenFile(path, mode, 0)
	if errors.Is(err, fs.ErrNotExist) { // a container's /dev does not get new ones
		if err := makeLoopNode(n, path); err != nil {
			return nil, err
		}
		device, err = os.OpenFile(path, mode, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, errors.Join(err, errNoLoop))
	}
	if err := unix.IoctlLoopConfigure(int(device.Fd()), config); err != nil {
		return nil, errors.Join(fmt.Errorf("bind %s: %w", path, err), device.Close())
	}
	return device, nil
}

func makeLoopNode(n int, path string) error {
	b, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/dev", n))
	if err != nil {
		return fmt.Errorf("find device number of %s: %w", path, errors.Join(err, errNoLoop))
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(b), "%d:%d", &major, &minor); err != nil {
		return fmt.Errorf("read device number of %s: %w", path, err)
	}
	err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor)))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make device node %s: %w", path, errors.Join(err, errNoLoop))
	}
	return nil
}

// volume is the handle of the volume under the device, if its file lies under a host adapter's mount at fuseDir.
func (l loop) volume(fuseDir string) (string, bool) {
	backing := strings.TrimSuffix(l.backing, " (deleted)") // the volume was detached since
	if !under(fuseDir, backing) {
		return "", false
	}
	return filepath.Base(backing), true
}

// inode is the inode number of the file under the device.
func (l loop) inode() (uint64, error) {
	f, err := os.OpenFile(l.device, os.O_RDONLY, 0)
	if err != nil {
		return 0, fmt.Errorf("open loop device: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return 0, fmt.Errorf("ask loop device %s: %w", l.device, err)
	}
	return info.Inode, nil
}

// loopsOf lists the devices bound to the volume on the node whose adapter is mounted at fuseDir.
func loopsOf(fuseDir, volume string) ([]loop, error) {
	all, err := listLoops()
	if err != nil {
		return nil, err
	}
	var mine []loop
	for _, l := range all {
		if l.isOf(fuseDir, volume) {
			mine = append(mine, l)
		}
	}
	return mine, nil
}

func (l loop) isOf(fuseDir, volume string) bool {
	v, ok := l.volume(fuseDir)
	return ok && v == volume
}

// freeLoops frees the volume's devices and returns when they are gone, or an error that names one in use.
func freeLoops(ctx context.Context, fuseDir, volume string) error {
	mine := func(l loop) bool { return l.isOf(fuseDir, volume) }
	var left []loop
	err := wait.PollUntilContextTimeout(ctx, loopLookAgain, loopPatience, true, func(context.Context) (done bool, err error) {
		if left, err = loopsOf(fuseDir, volume); err != nil {
			return false, err
		}
		for _, l := range left {
			if err := l.clear(mine); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
		}
		return len(left) == 0, nil
	})
	switch {
	case ctx.Err() != nil && len(left) > 0:
		return fmt.Errorf("wait for loop device %s of volume %s to be free: %w", left[0].device, volume, context.Cause(ctx))
	case wait.Interrupted(err):
		return fmt.Errorf("loop device %s of volume %s is still in use after %s", left[0].device, volume, loopPatience)
	}
	return err
}
