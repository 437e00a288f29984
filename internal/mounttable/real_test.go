package mounttable

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// container runs a shell in a mount namespace of its own, and returns when it says that it is ready.
func container(t *testing.T, propagation, script string) *exec.Cmd {
	t.Helper()
	return shell(t, exec.Command("unshare", "-m", "--propagation", propagation, "sh", "-ec", script+"; echo ready; read line"))
}

// shell starts a command, and returns when it says that it is ready.
func shell(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	_, err := cmd.StdinPipe() // which is never written to, and ends with this process
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatalf("%v does not start: %v", cmd.Args, err)
	}
	return cmd
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shared is a directory with a shared mount on it, and a volume mounted below.
func shared(t *testing.T) (root, volume string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	root = t.TempDir()
	must(t, unix.Mount("root", root, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	must(t, unix.Mount("", root, "", unix.MS_SHARED, ""))
	volume = filepath.Join(root, "volume")
	must(t, os.Mkdir(volume, 0o750))
	must(t, unix.Mount("volume", volume, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	return root, volume
}

// TestRealNamespaces: what the kernel says of containers that hold a volume, and of namespaces that do not.
func TestRealNamespaces(t *testing.T) {
	tests := map[string]struct {
		propagation, script string
		held                bool
	}{
		"a copy of all mounts, private":                   {"private", "true", true},
		"a copy of all mounts, that follows ours":         {"slave", "true", false},
		"follows ours, and has the volume somewhere else": {"slave", `mkdir "$ROOT/at" && mount -t tmpfs at "$ROOT/at" && mkdir "$ROOT/at/v" && mount --bind "$ROOT/volume" "$ROOT/at/v"`, true},
		"private, and has unmounted it":                   {"private", `umount "$ROOT/volume"`, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root, volume := shared(t)
			t.Setenv("ROOT", root)
			cmd := container(t, tt.propagation, tt.script)
			namespace, err := os.Readlink("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/mnt")
			must(t, err)
			// The kernel gives the number of a namespace that is gone to the next one. An open file keeps this one.
			kept, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/mnt")
			must(t, err)
			t.Cleanup(func() { _ = kept.Close() })
			var reader Reader
			// Other processes of this machine, those of other tests for example, may copy all mounts at any time.
			read := func() []Holder {
				table, err := reader.Read()
				must(t, err)
				holders, err := table.Holders(Volume{Paths: []string{volume}})
				must(t, err)
				return slices.DeleteFunc(holders, func(h Holder) bool { return h.Namespace != namespace })
			}
			holders := read()
			if got := len(holders) > 0; got != tt.held {
				t.Fatalf("holders %v, want some: %v", holders, tt.held)
			}
			if !tt.held {
				// And so it is: nothing is left of the file system once it is unmounted here.
				must(t, unix.Unmount(volume, 0))
				if _, err := os.Stat("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/root" + volume + "/x"); err == nil {
					t.Error("it is there still")
				}
				return
			}
			if holders[0].PID != cmd.Process.Pid || holders[0].Command != "sh" {
				t.Errorf("held by %v, want process %d (sh)", holders[0], cmd.Process.Pid)
			}
			ended := make(chan error, 1)
			go func() { ended <- WaitForExit(t.Context(), holders[0].PID) }()
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			select {
			case err := <-ended:
				if err != nil && !errors.Is(err, syscall.ESRCH) {
					t.Errorf("AwaitEnd: %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the exit is never noticed")
			}
			container(t, "private", "true") // as other tests start them, with a copy of the volume's mount
			if holders = read(); len(holders) > 0 {
				t.Errorf("held after its end: %v", holders)
			}
		})
	}
}

func TestWaitForExitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- WaitForExit(ctx, os.Getpid()) }()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("AwaitEnd: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits on")
	}
}

func TestReadingsAreShared(t *testing.T) {
	var reader Reader
	var readers sync.WaitGroup
	tables := make([]*Table, 100)
	reader.reading.Lock() // one is under way
	for i := range tables {
		readers.Go(func() { tables[i], _ = reader.Read() })
	}
	reader.reading.Unlock()
	readers.Wait()
	distinct := map[*Table]bool{}
	for _, table := range tables {
		if table == nil {
			t.Fatal("not read")
		}
		distinct[table] = true
	}
	t.Logf("%d readings for %d callers", len(distinct), len(tables))
}
