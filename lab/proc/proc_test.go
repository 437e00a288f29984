package proc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/proc"
)

// parentEnv makes this test binary a parent that starts one child and then waits to be killed.
const parentEnv = "BELAY_TEST_PARENT_RUNDIR"

// TestMain makes the test binary the shim too, by a link with its name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == proc.Program {
		if proc.Command().Execute() != nil {
			os.Exit(1)
		}
		return
	}
	if runDir := os.Getenv(parentEnv); runDir != "" {
		if _, err := (proc.Group{RunDir: runDir}).Start(proc.Spec{Name: "orphan", Path: "sleep", Args: []string{"300"}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	self, err := os.Executable()
	if err := errors.Join(err, os.Symlink(self, filepath.Join(dir, proc.Program)), os.Setenv("PATH", dir+":"+os.Getenv("PATH"))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// patience is how long a test waits for what must happen, also on a machine that is busy with much else.
const patience = 2 * time.Minute

// awaitRecord blocks until the record of a component is there and its process has become path.
func awaitRecord(t *testing.T, runDir, name, program string) proc.Record {
	t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		record, err := proc.ReadRecord(proc.RecordPath(runDir, name))
		if err == nil {
			if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", record.PID)); strings.HasSuffix(exe, program) {
				return record
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no record of %s, or it never became %s", name, program)
	return proc.Record{}
}

func sleepPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("this machine has no sleep program")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(path)
}

func TestStoppedComponentLeavesNothing(t *testing.T) {
	runDir := t.TempDir()
	p, err := proc.Group{RunDir: runDir}.Start(proc.Spec{Name: "node-1/agent", Path: "sleep", Args: []string{"300"}, Restart: true})
	if err != nil {
		t.Fatal(err)
	}
	record := awaitRecord(t, runDir, "node-1/agent", sleepPath(t))
	if !record.Alive() {
		t.Error("a running process is reported as gone")
	}
	if err := p.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if record.Alive() {
		t.Error("a stopped process is reported as running")
	}
	records, err := proc.Records(runDir)
	if diff := cmp.Diff(map[string]proc.Record{}, records); diff != "" || err != nil {
		t.Errorf("records left behind (%v): %s", err, diff)
	}
}

func TestStateShowsStoppedBySignal(t *testing.T) {
	group := proc.Group{RunDir: t.TempDir()}
	p, err := group.Start(proc.Spec{Name: "sleeper", Path: "sleep", Args: []string{"60"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.PowerOff() })
	for _, step := range []struct {
		signal unix.Signal
		want   bool
	}{{unix.SIGSTOP, true}, {unix.SIGCONT, false}} {
		if err := p.Signal(step.signal); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(patience)
		for p.State().Stopped != step.want {
			if time.Now().After(deadline) {
				t.Fatalf("after %v the state is %+v", step.signal, p.State())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func TestHostname(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: a hostname of its own needs root")
	}
	log := filepath.Join(t.TempDir(), "log")
	p, err := proc.Group{RunDir: t.TempDir()}.Start(proc.Spec{Name: "other", Path: "uname", Args: []string{"-n"}, Hostname: "other", LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if said, err := os.ReadFile(log); err != nil || string(said) != "other\n" {
		t.Errorf("the program sees hostname %q (%v), want other", said, err)
	}
	if mine, err := os.Hostname(); err != nil || mine == "other" {
		t.Errorf("this process has hostname %q (%v)", mine, err)
	}
}

func TestKilledComponentComesBack(t *testing.T) {
	runDir := t.TempDir()
	exits := make(chan error, 1)
	p, err := proc.Group{RunDir: runDir}.Start(proc.Spec{
		Name: "etcd", Path: "sleep", Args: []string{"300"}, Restart: true,
		Exited: func(err error) {
			select {
			case exits <- err:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Stop(context.Background()) }()
	first := awaitRecord(t, runDir, "etcd", sleepPath(t))
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-exits; err == nil {
		t.Error("a kill was not reported as one")
	}
	second := awaitRecord(t, runDir, "etcd", sleepPath(t))
	if first.PID == second.PID && first.StartTime == second.StartTime {
		t.Error("the same process is still there")
	}
	if got := p.State(); got.Restarts != 1 || got.PID != second.PID {
		t.Errorf("state is %+v, want one restart and pid %d", got, second.PID)
	}
}

// TestRestartsInARow: a run that was long enough is no failed start.
func TestRestartsInARow(t *testing.T) {
	for steadyAfter, counts := range map[time.Duration]bool{patience: true, 50 * time.Millisecond: false} {
		group := proc.Group{RunDir: t.TempDir(), SteadyAfter: steadyAfter}
		p, err := group.Start(proc.Spec{Name: "again", Path: "sleep", Args: []string{"0.1"}, Restart: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.PowerOff() })
		deadline := time.Now().Add(patience)
		for p.State().Restarts < 3 && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		if got := p.State(); got.Restarts < 3 || (got.RestartsInARow > 1) != counts {
			t.Errorf("with runs of 0.1 s and SteadyAfter %v: %+v", steadyAfter, got)
		}
	}
}

func TestProgramIgnoringSIGTERMIsKilledAfterGrace(t *testing.T) {
	runDir := t.TempDir()
	p, err := proc.Group{RunDir: runDir}.Start(proc.Spec{
		Name: "deaf", Path: "sh", Args: []string{"-c", "trap '' TERM; echo ready; exec sleep 300"}, // what is ignored stays ignored
		Grace: 100 * time.Millisecond, LogFile: filepath.Join(runDir, "logs", "deaf.log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitRecord(t, runDir, "deaf", sleepPath(t))
	if err := p.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if pid := p.State().PID; pid != 0 {
		t.Errorf("it still runs as %d", pid)
	}
}

// The parent is killed at random points around the start of its child. Whatever the moment,
// a process of the child either has a record or does not come to be.
func TestParentKilledDuringStart(t *testing.T) {
	sleepPath(t)
	for i := range 12 {
		runDir := t.TempDir()
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), parentEnv+"="+runDir)
		parent.Stderr = os.Stderr
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 4 * time.Millisecond)
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = parent.Wait()
		// A process that is still this program is in transition: it becomes the child, or ends.
		for deadline := time.Now().Add(patience); len(processesOf(t, runDir, os.Args[0])) > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a child that was being started neither started nor ended")
			}
		}
		recorded := map[int]bool{}
		records, err := proc.Records(runDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range records {
			recorded[record.PID] = true
			if err := record.End(0); err != nil {
				t.Error(err)
			}
			if record.Alive() {
				t.Error("it was ended but lives")
			}
		}
		for _, pid := range processesOf(t, runDir, "") {
			t.Errorf("after %d ms: process %d has no record or outlived its end (recorded: %v)", i*4, pid, recorded)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// processesOf finds the living processes that carry a run folder in their environment, of one
// program if it is named.
func processesOf(t *testing.T, runDir, program string) []int {
	t.Helper()
	if program != "" {
		var err error
		if program, err = filepath.EvalSymlinks(program); err != nil {
			t.Fatal(err)
		}
	}
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range environments {
		content, err := os.ReadFile(path)
		if exe, _ := os.Readlink(filepath.Join(filepath.Dir(path), "exe")); program != "" && exe != program {
			continue
		}
		starting := program != "" && len(content) == 0 // its new environment is not in place yet
		if err == nil && (starting || strings.Contains(string(content), parentEnv+"="+runDir)) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/environ", &pid); err == nil && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func TestReusedPidIsAnotherProcess(t *testing.T) {
	command := exec.Command("sleep", "300")
	if err := command.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = command.Process.Kill(); _ = command.Wait() }()
	mine, err := proc.Self("test", os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	theirs := mine
	theirs.PID = command.Process.Pid // our start time with another's pid: what a reuse looks like
	real, err := proc.Of("sleep", theirs.PID)
	if err != nil {
		t.Fatal(err)
	}
	if real.StartTime == theirs.StartTime {
		theirs.StartTime-- // both started in one tick of the clock, and a pid is not reused within it
	}
	otherBoot := mine
	otherBoot.BootID = "00000000-0000-0000-0000-000000000000"
	for name, record := range map[string]proc.Record{"other start time": theirs, "other boot": otherBoot, "no pid": {BootID: mine.BootID}} {
		t.Run(name, func(t *testing.T) {
			if record.Alive() {
				t.Error("taken for the recorded process")
			}
			if err := record.Signal(unix.SIGKILL); !errors.Is(err, proc.ErrGone) {
				t.Errorf("signalling gave %v, want %v", err, proc.ErrGone)
			}
			if err := record.End(0); err != nil {
				t.Errorf("ending what is gone: %v", err)
			}
		})
	}
	if err := command.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the innocent process was hit: %v", err)
	}
	if !mine.Alive() {
		t.Error("this very process is reported as gone")
	}
}

func TestZombieIsGone(t *testing.T) {
	command := exec.Command("sleep", "300")
	if err := command.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = command.Wait() }()
	record := recordOf(t, command.Process.Pid)
	if !record.Alive() {
		t.Fatal("a running process is reported as gone")
	}
	if err := record.End(0); err != nil { // killed, but we do not reap it
		t.Fatal(err)
	}
	if record.Alive() {
		t.Error("a zombie is reported as running")
	}
}

// recordOf makes a record of any process.
func recordOf(t *testing.T, pid int) proc.Record {
	t.Helper()
	record, err := proc.Of("any", pid)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

func TestMissingProgramFailsStart(t *testing.T) {
	_, err := proc.Group{RunDir: t.TempDir()}.Start(proc.Spec{Name: "etcd", Path: "/no/such/etcd"})
	if err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("got %v, want an error that names the component", err)
	}
}
