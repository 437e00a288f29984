// Package cputime compares functions by the processor time that they take. Tests state limits as ratios, because the machines that run
// them differ, and one machine differs from minute to minute, by more than any limit in seconds.
package cputime

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// batches is how often AtMost compares before it fails. What else runs on the machine takes its share of the caches, now and then
// for a while: one quiet batch is enough.
const batches = 20

// pause is the time between two batches, so that all of them outlast what else runs.
const pause = 2 * time.Second

// Of each function, a batch makes so many calls, or fewer once they have taken long enough: one that is far too slow fails soon.
const calls, enough = 20, time.Second

// Judges skips a test of processor time where the race detector, which costs a multiple of it, or a run without make says nothing about it.
func Judges(t *testing.T) {
	t.Helper()
	if raceDetector() || os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("NOT RUN: it measures processor time, which make test does")
	}
}

// AtMost fails unless the function takes at most so many times the processor time of the other.
func AtMost(tb testing.TB, most float64, do, than func()) {
	tb.Helper()
	ratio := math.Inf(1)
	for n := range batches {
		if n > 0 {
			time.Sleep(pause)
		}
		took, other := quick(tb, do), quick(tb, than)
		tb.Logf("%v, %.1f times the %v of what it is compared with", took, float64(took)/float64(other), other)
		if ratio = min(ratio, float64(took)/float64(other)); ratio <= most {
			return
		}
	}
	tb.Errorf("takes %.1f times the processor time of what it is compared with, want at most %v times", ratio, most)
}

// Of is the processor time that the function takes on its thread, whatever else the machine does.
func Of(tb testing.TB, do func()) time.Duration {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := now(tb)
	do()
	return now(tb) - began
}

func now(tb testing.TB) time.Duration {
	tb.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// quick is the processor time that a tenth of the calls of a batch stay below.
func quick(tb testing.TB, do func()) time.Duration {
	tb.Helper()
	var took []time.Duration
	for sum := time.Duration(0); len(took) < calls && sum < enough; {
		took = append(took, Of(tb, do))
		sum += took[len(took)-1]
	}
	slices.Sort(took)
	return took[len(took)/10]
}

// raceDetector reports whether the test was built with it.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
