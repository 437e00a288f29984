package nodes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// raisable is a setting that labs raise.
const raisable = "fs/inotify/max_user_instances"

// raisableNow reads it.
func raisableNow(t *testing.T) int {
	t.Helper()
	now, err := readSysctl(raisable)
	if err != nil {
		t.Fatal(err)
	}
	value, err := strconv.Atoi(now)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// twoLabs are the folders of two labs, and what the setting is before both, on a machine of the test's own.
func twoLabs(t *testing.T) (first, second string, before int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: RestoreSysctls does nothing for a user who is not root")
	}
	root, record := sysctlRoot, sysctlRecord
	t.Cleanup(func() { sysctlRoot, sysctlRecord = root, record })
	sysctlRoot, sysctlRecord = t.TempDir(), filepath.Join(t.TempDir(), "sysctls.json")
	first, second, before = t.TempDir(), t.TempDir(), 128
	setting := filepath.Join(sysctlRoot, raisable)
	if err := errors.Join(os.MkdirAll(filepath.Dir(setting), 0o700), os.WriteFile(setting, []byte(strconv.Itoa(before)+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := RaiseSysctl(first, raisable, before+1); err != nil {
		t.Fatal(err)
	}
	if got := raisableNow(t); got != before+1 {
		t.Errorf("it is %d, want %d", got, before+1)
	}
	return first, second, before
}

// release ends what a lab holds.
func release(t *testing.T, dir string) {
	t.Helper()
	if err := RestoreSysctls(dir); err != nil {
		t.Fatal(err)
	}
}

// TestRaisedSysctlIsRestored: the record has what was there before, also after it was raised twice.
func TestRaisedSysctlIsRestored(t *testing.T) {
	dir, _, before := twoLabs(t)
	if err := RaiseSysctl(dir, raisable, before+2); err != nil || raisableNow(t) != before+2 {
		t.Errorf("it was raised to %d, want %d (%v)", raisableNow(t), before+2, err)
	}
	if err := RaiseSysctl(dir, raisable, before); err != nil || raisableNow(t) != before+2 {
		t.Errorf("a value that is high enough was changed to %d (%v)", raisableNow(t), err)
	}
	release(t, dir)
	if got := raisableNow(t); got != before {
		t.Errorf("it was restored to %d, want %d", got, before)
	}
	if _, err := os.Stat(sysctlRecord); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no lab holds a setting, and the record is still there: %v", err)
	}
	release(t, dir) // a lab that holds nothing changes nothing
}

// TestTwoLabsRaiseOneSetting: the one that ends first leaves the other what it needs, and the last one leaves the machine as it was.
func TestTwoLabsRaiseOneSetting(t *testing.T) {
	for name, more := range map[string]int{"the second needs more": 2, "the second needs less": 1} {
		t.Run(name, func(t *testing.T) {
			first, second, before := twoLabs(t)
			if err := RaiseSysctl(second, raisable, before+more); err != nil {
				t.Fatal(err)
			}
			release(t, first)
			if got := raisableNow(t); got < before+more {
				t.Errorf("the first lab has ended, and the second has %d of the %d that it needs", got, before+more)
			}
			release(t, second)
			if got := raisableNow(t); got != before {
				t.Errorf("both have ended, and the machine is left with %d, not %d", got, before)
			}
		})
	}
}

// TestRaisedByALabThatIsGone: a lab that was killed and whose folder was removed holds nothing.
func TestRaisedByALabThatIsGone(t *testing.T) {
	first, second, before := twoLabs(t)
	if err := RaiseSysctl(second, raisable, before+2); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	release(t, second)
	if got := raisableNow(t); got != before {
		t.Errorf("the machine is left with %d, not %d", got, before)
	}
}
