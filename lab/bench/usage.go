package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the kernel's unit of CPU time in /proc/<pid>/stat: USER_HZ is 100 on every
// architecture that Go runs on with Linux.
const tick = 10 * time.Millisecond

// cpuTime is what a process has used of the processors so far, in user and system mode, all its
// threads, ended ones included. Its grain is tick.
func cpuTime(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return parseCPUTime(raw)
}

// parseCPUTime reads proc_pid_stat(5): utime and stime are fields 14 and 15, counted from 1; the
// second field is the program's name in parentheses and may hold anything.
func parseCPUTime(stat []byte) (time.Duration, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("%q is not the state of a process", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the CPU time in %q: %w", stat, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// peakMemory is the largest resident set that a process has had, bytes.
func peakMemory(pid int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	return parsePeakMemory(string(raw))
}

func parsePeakMemory(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("reading %q: %w", line, err)
			}
			return kilobytes << 10, nil
		}
	}
	return 0, fmt.Errorf("the state of the process tells no peak memory; has it ended?")
}
