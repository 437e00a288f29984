package mounttable

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// initialPIDNamespace is PROC_PID_INIT_INO, the number of the machine's initial pid namespace.
const initialPIDNamespace = "pid:[4026531836]"

// SeesAllProcesses reports whether this process sees all processes of the machine. In its own pid namespace it sees those of that
// namespace and below: a node that is a container sees its pods, an agent that is one does not.
func SeesAllProcesses() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == initialPIDNamespace
}

// WaitForExit returns when a process has exited, or ctx has ended. It fails on kernels without pidfds for that (before 5.10).
func WaitForExit(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("wait for process %d to exit: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close() //nolint:errcheck // nothing was written
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for process %d to exit: %w", pid, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("wait for process %d to exit: %w", pid, err)
	}
	return nil
}
