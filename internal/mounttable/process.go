package mounttable

import (
	"context"
	"fmt"
	"os"
	"strings"
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

// CheckRights returns an error that names the capabilities without which the search does not see everything.
//
// /proc/pid/ns, root and fd need PTRACE_MODE_READ_FSCREDS, and so does the list of processes if /proc is mounted with hidepid
// (torvalds/linux v6.18 fs/proc/base.c, proc_pid_get_link and has_pid_permissions). A list of open files is a directory of the
// process's user with mode 0500.
func CheckRights() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	has := func(capability int) bool { return data[capability/32].Effective&(1<<(capability%32)) != 0 }
	var missing []string
	if !has(unix.CAP_SYS_PTRACE) {
		missing = append(missing, "CAP_SYS_PTRACE")
	}
	if !has(unix.CAP_DAC_READ_SEARCH) && !has(unix.CAP_DAC_OVERRIDE) {
		missing = append(missing, "CAP_DAC_READ_SEARCH")
	}
	if len(missing) > 0 {
		return fmt.Errorf("search for other users of volumes: this process lacks %s: %w", strings.Join(missing, " and "), os.ErrPermission)
	}
	return nil
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
