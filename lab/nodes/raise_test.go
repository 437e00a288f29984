package nodes

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRaisedSysctlIsRestored: the lab's record has what was there before, also after it was raised twice.
func TestRaisedSysctlIsRestored(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: settings of the machine are changed by root")
	}
	const name = "fs/inotify/max_user_instances"
	read := func() int {
		raw, err := os.ReadFile(filepath.Join(sysctlRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		value, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	before, dir := read(), t.TempDir()
	t.Cleanup(func() {
		if err := RestoreSysctls(dir); err != nil {
			t.Error(err)
		}
	})
	for _, raised := range []int{before + 1, before + 2} {
		if err := RaiseSysctl(dir, name, raised); err != nil {
			t.Skipf("NOT RUN: this machine's settings cannot be changed: %v", err)
		}
		if got := read(); got != raised {
			t.Errorf("it is %d, want %d", got, raised)
		}
	}
	if err := RaiseSysctl(dir, name, before); err != nil || read() != before+2 {
		t.Errorf("a value that is high enough was changed to %d (%v)", read(), err)
	}
	if err := RestoreSysctls(dir); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != before {
		t.Errorf("it was restored to %d, want %d", got, before)
	}
}
