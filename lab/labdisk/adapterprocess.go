package labdisk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// adapterProcess sees to it that a live host adapter is mounted.
type adapterProcess struct {
	mu sync.Mutex // one start at a time
}

// ensure starts an adapter unless a live one is mounted. A dead one's mount is taken away: what used it is lost.
func (a *adapterProcess) ensure(o NodeOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	alive, err := adapterAlive(o.FuseDir)
	if err != nil || alive {
		return err
	}
	if err := os.MkdirAll(o.FuseDir, 0o755); err != nil {
		return fmt.Errorf("make mount point of the host adapter: %w", err)
	}
	return startAdapter(o)
}

// adapterAlive reports whether a mounted adapter answers, and unmounts one that died.
func adapterAlive(fuseDir string) (bool, error) {
	for {
		infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
			return i.Mountpoint != fuseDir || i.FSType != fuseType, false
		})
		if err != nil {
			return false, fmt.Errorf("read mount table: %w", err)
		}
		if len(infos) == 0 {
			return false, nil
		}
		var st unix.Stat_t
		if err = unix.Stat(fuseDir+"/"+realm(fuseDir), &st); err == nil {
			return true, nil
		}
		slog.Warn("Host adapter is dead, its mount is taken away", "dir", fuseDir, "err", err)
		if err := unix.Unmount(fuseDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return false, fmt.Errorf("take away mount of the dead host adapter at %s: %w", fuseDir, err)
		}
	}
}

// startAdapter runs the adapter as a process of its own session, which neither a signal to the driver's process group nor
// the driver's end reaches. It writes to <FuseDir>.log, so that it holds no pipe of the driver's.
func startAdapter(o NodeOptions) error {
	command := o.AdapterCommand
	if len(command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find own program: %w", err)
		}
		command = []string{self, "labdisk", "adapter"}
	}
	fuse, err := mountFUSE(o.FuseDir)
	if err != nil {
		return err
	}
	err = spawnAdapter(command, o, fuse)
	if closeErr := fuse.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return errors.Join(err, unix.Unmount(o.FuseDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	return nil
}

// mountFUSE makes the adapter's mount in the node's mount namespace.
func mountFUSE(dir string) (*os.File, error) {
	fuse, err := openFUSE()
	if err != nil {
		return nil, err
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d,default_permissions,allow_other", fuse.Fd(), fuseTransfer)
	if err := unix.Mount("labdisk", dir, fuseType, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount FUSE at %s: %w", dir, err), fuse.Close())
	}
	return fuse, nil
}

// spawnAdapter returns when the adapter serves the mount.
func spawnAdapter(command []string, o NodeOptions, fuse *os.File) error {
	logFile, err := os.OpenFile(o.FuseDir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log of the host adapter: %w", err)
	}
	defer func() { _ = logFile.Close() }()
	ready, readyWriter, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe to the host adapter: %w", err)
	}
	defer func() { _ = ready.Close() }()
	args := append(command[1:len(command):len(command)], "--fabric", o.Fabric, "--node-id", o.NodeID, "--fuse-dir", o.FuseDir,
		"--io-patience", o.IOPatience.String())
	cmd := exec.Command(command[0], args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{readyWriter, fuse} // adapterReadyFD, adapterFuseFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Start()
	_ = readyWriter.Close()
	if err != nil {
		return fmt.Errorf("start host adapter: %w", err)
	}
	go func() { _ = cmd.Wait() }() // it outlives this process or is collected here
	if err := ready.SetReadDeadline(time.Now().Add(startPatience)); err != nil {
		return fmt.Errorf("wait for host adapter: %w", err)
	}
	line, err := bufio.NewReader(ready).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("wait for host adapter: %w", err), cmd.Process.Kill())
	}
	if line = strings.TrimSpace(line); line != adapterReady {
		return fmt.Errorf("host adapter did not start: %s (its log is %s.log)", line, o.FuseDir)
	}
	return nil
}

// adapterReady is the line that an adapter writes to adapterReadyFD when its mount stands; any other line is an error.
const adapterReady = "ready"
