package bench

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// cpuTime is what a process has used of the processors so far, in user and system mode, all its
// threads, ended ones included. Its grain is a tick of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("looking for process %d: %w", pid, err)
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second)), nil
}

// peakMemory is the largest resident set that a process has had, bytes.
func peakMemory(pid int) (int64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("looking for process %d: %w", pid, err)
	}
	status, err := process.NewStatus()
	if err != nil {
		return 0, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	if status.VmHWM == 0 {
		return 0, fmt.Errorf("the state of process %d has no peak memory; has it ended?", pid)
	}
	return int64(status.VmHWM), nil
}
