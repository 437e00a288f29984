package mounttable

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestStartTime(t *testing.T) {
	const rest = " 1 2 2 0 -1 4194560 93 0 0 0 0 0 0 0 20 0 1 0 "
	for stat, want := range map[string]uint64{
		"2 (sh) S" + rest + "6311 2940928 232":             6311,
		"2 (a) S 1 2 (b)) R" + rest + "6311 2940928 232\n": 6311,
		"2 (sh) S" + rest:                      math.MaxUint64,
		"2 (sh) S" + rest + "soon 2940928 232": math.MaxUint64,
		"":                                     math.MaxUint64,
	} {
		if got := startTime(stat); got != want {
			t.Errorf("%q: started at %d, want %d", stat, got, want)
		}
	}
	if got := startedAt(os.Getpid()); got == 0 || got == math.MaxUint64 {
		t.Errorf("this process started at %d", got)
	}
}

// inPIDNamespace is set for a test that runs in a pid namespace of its own, and may choose the next pid there.
const inPIDNamespace = "MOUNTTABLE_TEST_IN_PID_NAMESPACE"

// TestHolderIsOldestProcess: a child that comes before its parent in the order of /proc does not stand for the namespace. The agent
// waits for the exit of the one that it names.
func TestHolderIsOldestProcess(t *testing.T) {
	if os.Getenv(inPIDNamespace) == "" {
		if os.Getuid() != 0 {
			t.Skip("needs root to mount")
		}
		cmd := exec.Command("unshare", "-p", "-f", "-m", "--mount-proc", "--kill-child", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inPIDNamespace+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	const lastPID = "/proc/sys/kernel/ns_last_pid"
	_, volume := shared(t)
	must(t, os.WriteFile(lastPID, []byte("9980"), 0o600)) // threads of this process may take the next ones
	parent := container(t, "private", "echo 10004 >"+lastPID+"; { sleep 1000 & }").Process.Pid
	if parent < 9981 || parent > 9999 {
		t.Fatalf("the parent is process %d", parent)
	}
	if _, err := os.Stat("/proc/10005"); err != nil {
		t.Fatalf("the child has another pid: %v", err)
	}
	var reader Reader
	table, err := reader.Read()
	must(t, err)
	holders, err := table.Holders(Volume{Paths: []string{volume}})
	must(t, err)
	if !slices.ContainsFunc(holders, func(h Holder) bool { return h.PID == parent && h.Command == "sh" }) {
		t.Errorf("held by %v, want process %d", holders, parent)
	}
}
