package nodes

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTwoLabsRaiseOneSetting: the one that ends first leaves the other what it needs, and the last one leaves the machine as it was.
func TestTwoLabsRaiseOneSetting(t *testing.T) {
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
	before := read()
	t.Cleanup(func() { _ = os.WriteFile(filepath.Join(sysctlRoot, name), []byte(strconv.Itoa(before)), 0o644) })
	first, second := t.TempDir(), t.TempDir()
	if err := RaiseSysctl(first, name, before+1); err != nil {
		t.Skipf("NOT RUN: this machine's settings cannot be changed: %v", err)
	}
	if err := RaiseSysctl(second, name, before+2); err != nil {
		t.Fatal(err)
	}
	if err := RestoreSysctls(first); err != nil {
		t.Fatal(err)
	}
	if got := read(); got < before+2 {
		t.Errorf("the first lab has ended, and the second has %d of the %d that it needs", got, before+2)
	}
	if err := RestoreSysctls(second); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != before {
		t.Errorf("both have ended, and the machine is left with %d, not %d", got, before)
	}
}
