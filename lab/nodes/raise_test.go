package nodes

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// raisable is a setting that nothing of the tests needs raised.
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

// twoLabs are the folders of two labs, and what the setting is before both. It is that again after the test.
func twoLabs(t *testing.T) (first, second string, before int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: settings of the machine are changed by root")
	}
	first, second, before = t.TempDir(), t.TempDir(), raisableNow(t)
	t.Cleanup(func() {
		for _, dir := range []string{first, second} {
			if err := RestoreSysctls(dir); err != nil {
				t.Error(err)
			}
		}
		_ = os.WriteFile(filepath.Join(sysctlRoot, raisable), []byte(strconv.Itoa(before)), 0o644)
	})
	if err := RaiseSysctl(first, raisable, before+1); err != nil {
		t.Skipf("NOT RUN: this machine's settings cannot be changed: %v", err)
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
