package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/jsonfile"
)

// Record identifies one process beyond the reuse of its pid.
type Record struct {
	// Name of the component, such as "etcd" or "node-1".
	Name string `json:"name"`
	// PID in the pid namespace of the writer.
	PID int `json:"pid"`
	// StartTime is field 22 of /proc/<pid>/stat: clock ticks since boot.
	StartTime uint64 `json:"startTime"`
	// BootID is /proc/sys/kernel/random/boot_id: start times of another boot mean nothing.
	BootID string `json:"bootID"`
	// Path of the program that it became.
	Path string `json:"path"`
}

// recordSuffix ends the name of every record's file.
const recordSuffix = ".json"

// RecordPath is where the record of a component lies in a run folder. Slashes in names
// ("node-1/agent") become underscores, which no component's name holds.
func RecordPath(runDir, name string) string {
	return filepath.Join(runDir, strings.ReplaceAll(name, "/", "_")+recordSuffix)
}

// Self is the record of this very process.
func Self(name, path string) (Record, error) {
	r, err := Of(name, os.Getpid())
	r.Path = path
	return r, err
}

// Of is the record of any process that is there now.
func Of(name string, pid int) (Record, error) {
	start, _, err := stat(pid)
	if err != nil {
		return Record{}, fmt.Errorf("reading the start time of process %d: %w", pid, err)
	}
	boot, err := BootID()
	if err != nil {
		return Record{}, err
	}
	return Record{Name: name, PID: pid, StartTime: start, BootID: boot}, nil
}

// Write stores the record at path, whole or not at all.
func (r Record) Write(path string) error {
	if err := jsonfile.Write(path, r); err != nil {
		return fmt.Errorf("writing the record of %s: %w", r.Name, err)
	}
	return nil
}

// ReadRecord reads one record.
func ReadRecord(path string) (r Record, err error) {
	if err := jsonfile.Read(path, &r); err != nil {
		return Record{}, fmt.Errorf("reading a process record: %w", err)
	}
	return r, nil
}

// Records reads all records of a run folder, keyed by the path of their file. A folder that is not
// there holds none; a file that cannot be read is part of the error, which comes with the other records.
func Records(runDir string) (map[string]Record, error) {
	paths, err := filepath.Glob(filepath.Join(runDir, "*"+recordSuffix))
	if err != nil {
		return nil, fmt.Errorf("listing process records in %s: %w", runDir, err)
	}
	records := make(map[string]Record, len(paths))
	var errs []error
	for _, path := range paths {
		r, err := ReadRecord(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // ended since the listing
		case err != nil:
			errs = append(errs, err)
		default:
			records[path] = r
		}
	}
	return records, errors.Join(errs...)
}

// ErrGone says that the recorded process has ended; its pid may be another process's by now.
var ErrGone = errors.New("process has ended")

// open returns a pidfd of the recorded process, or ErrGone. The order makes it safe: the pidfd
// is pinned to whatever has the pid now, and only then start time and boot are compared.
func (r Record) open() (int, error) {
	boot, err := BootID()
	if err != nil {
		return -1, err
	}
	if r.PID <= 0 || r.BootID != boot {
		return -1, ErrGone
	}
	pidfd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("opening process %d (%s): %w", r.PID, r.Name, err)
	}
	start, state, err := stat(r.PID)
	if err != nil || start != r.StartTime || !runs(state) {
		_ = unix.Close(pidfd)
		return -1, ErrGone
	}
	return pidfd, nil
}

// Alive reports whether the recorded process still runs. A zombie does not: killed orphans may stay
// as zombies until their new parent reaps them.
func (r Record) Alive() bool {
	pidfd, err := r.open()
	if err != nil {
		return false
	}
	_ = unix.Close(pidfd)
	return true
}

// Signal sends sig to the recorded process and to no other; ErrGone if it has ended.
func (r Record) Signal(sig unix.Signal) error {
	pidfd, err := r.open()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pidfd) }()
	if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrGone
		}
		return fmt.Errorf("sending %v to process %d (%s): %w", sig, r.PID, r.Name, err)
	}
	return nil
}

// End stops the recorded process, which need not be a child: SIGTERM, and after grace SIGKILL.
// With no grace it is killed at once. It returns when the process is gone; nil if it was before.
func (r Record) End(grace time.Duration) error {
	pidfd, err := r.open()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pidfd) }()
	if grace > 0 {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0)
		if waitExit(pidfd, grace) == nil {
			return nil
		}
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d (%s): %w", r.PID, r.Name, err)
	}
	if err := waitExit(pidfd, killedWithin); err != nil {
		return fmt.Errorf("process %d (%s) was killed but is not gone: %w", r.PID, r.Name, err)
	}
	return nil
}

// killedWithin is how long a process may take to vanish after SIGKILL; longer means that it is
// stuck in the kernel (uninterruptible I/O).
const killedWithin = 30 * time.Second

// waitExit blocks until the process behind pidfd has ended (a zombie has) or the time is over.
func waitExit(pidfd int, atMost time.Duration) error {
	deadline := time.Now().Add(atMost)
	for {
		left := time.Until(deadline)
		if left < 0 {
			return fmt.Errorf("still there after %v", atMost)
		}
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("waiting for a process to end: %w", err)
		case n > 0:
			return nil
		}
	}
}

// BootID names this boot of the machine.
func BootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// runs reports whether a state letter of /proc/<pid>/stat is that of a process that can still act.
func runs(state byte) bool { return state != 'Z' && state != 'X' && state != 'x' }

// Stopped reports whether a process is stopped by a signal, until SIGCONT. It is false for one that is not there.
func Stopped(pid int) bool {
	_, state, err := stat(pid)
	return err == nil && (state == 'T' || state == 't')
}

// stat reads start time (clock ticks since boot) and state letter of a process.
func stat(pid int) (startTime uint64, state byte, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	return parseStat(string(content))
}

// parseStat reads a line of /proc/<pid>/stat. The second field, the program's name, may hold
// spaces and parentheses, so fields are counted after the last ")".
func parseStat(line string) (startTime uint64, state byte, err error) {
	const stateField, startTimeField = 3, 22
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("no program name in %q", line)
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) <= startTimeField-stateField {
		return 0, 0, fmt.Errorf("too few fields in %q", line)
	}
	startTime, err = strconv.ParseUint(fields[startTimeField-stateField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("start time in %q: %w", line, err)
	}
	return startTime, fields[0][0], nil
}
